// Flags: -ffp-contract=off, and nothing that chooses an instruction set.
#include "native/isa/instantiate.h"
#include "native/simd/portable.h"

namespace sojourn {

extern constinit const Kernels kPortableKernels = instantiate<Portable>("portable");

}  // namespace sojourn
