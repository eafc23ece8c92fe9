// The whole of a test framework: say what failed, count it, give main its exit code.
#pragma once
#include <cstdio>

namespace sojourn::test {

inline int failures = 0;

template <class... Args>
bool check(bool ok, const char* format, Args... args) {
    if (ok) return true;
    // A wrong kernel fails everywhere at once; the first few lines say enough.
    if (++failures <= 20) {
        std::fputs("FAILED: ", stdout);
        std::printf(format, args...);
        std::putchar('\n');
    }
    return false;
}

inline int report(const char* name) {
    if (failures == 0) {
        std::printf("%s: ok\n", name);
        return 0;
    }
    std::printf("%s: %d checks failed\n", name, failures);
    return 1;
}

}  // namespace sojourn::test
