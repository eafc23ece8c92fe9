// Flags: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c -ffp-contract=off. Any file whose
// name ends in avx512.cpp needs them. GCC 12 also wants -Wno-maybe-uninitialized: its own intrinsics warn (bug 105593).
#if defined(__x86_64__)
#include "native/simd/avx512.h"

#include "native/isa/instantiate.h"

namespace sojourn {

extern constinit const Kernels kAvx512Kernels = instantiate<Avx512>("avx512");

}  // namespace sojourn
#endif
