// Flags: those of native/isa/avx2.cpp.
#if defined(__x86_64__)
#include "native/simd/avx2.h"

#include "native/tests/lanes_table.h"

namespace sojourn::test {

extern constinit const LanesTable kAvx2Lanes = lanes_table<Avx2>("avx2");

}  // namespace sojourn::test
#endif
