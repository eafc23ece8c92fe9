// Flags: -mavx2 -mfma -mf16c -ffp-contract=off. Any file whose name ends in avx2.cpp needs them.
#if defined(__x86_64__)
#include "native/simd/avx2.h"

#include "native/isa/instantiate.h"

namespace sojourn {

extern constinit const Kernels kAvx2Kernels = instantiate<Avx2>("avx2");

}  // namespace sojourn
#endif
