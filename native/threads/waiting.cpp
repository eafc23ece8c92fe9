#include "native/threads/waiting.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sojourn {

namespace {

// About 20 to 40 microseconds: longer than the tail of a well-balanced phase, shorter than a time slice.
constexpr int kSpins = 1000;

void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void Signal::wait_while(uint32_t seen) {
    for (int spin = 0; spin < kSpins; spin++) {
        if (word_.load(std::memory_order_acquire) != seen) return;
        pause_briefly();
    }
    // Sequential consistency here and in `advance`: either it sees us counted, or we see its value.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == seen) word_.wait(seen, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Signal::advance() {
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) word_.notify_all();
}

}  // namespace sojourn
