// Flags: those of native/isa/avx512.cpp.
#if defined(__x86_64__)
#include "native/simd/avx512.h"

#include "native/tests/lanes_table.h"

namespace sojourn::test {

extern constinit const LanesTable kAvx512Lanes = lanes_table<Avx512>("avx512");

}  // namespace sojourn::test
#endif
