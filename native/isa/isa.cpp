#include "native/isa/isa.h"

#include <stdexcept>

namespace sojourn {

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

bool is_supported(Isa isa) {
    switch (isa) {
        case Isa::Portable:
            return true;
#if defined(__x86_64__)
        // The builtin also asks the operating system whether it saves the wide registers.
        case Isa::Avx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        case Isa::Avx512:
            return is_supported(Isa::Avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vnni");
#else
        case Isa::Avx2:
        case Isa::Avx512:
            return false;
#endif
    }
    return false;
}

Isa best_isa() {
    if (is_supported(Isa::Avx512)) return Isa::Avx512;
    return is_supported(Isa::Avx2) ? Isa::Avx2 : Isa::Portable;
}

const Kernels& kernels_for(Isa isa) {
    if (!is_supported(isa)) throw std::invalid_argument("this processor or this build lacks the instruction set");
#if defined(__x86_64__)
    if (isa == Isa::Avx512) return kAvx512Kernels;
    if (isa == Isa::Avx2) return kAvx2Kernels;
#endif
    return kPortableKernels;
}

}  // namespace sojourn
