// Flags: those of native/isa/portable.cpp.
#include "native/simd/portable.h"

#include "native/tests/lanes_table.h"

namespace sojourn::test {

extern constinit const LanesTable kPortableLanes = lanes_table<Portable>("portable");

}  // namespace sojourn::test
