#include "native/threads/team.h"

namespace sojourn {

namespace {

constexpr uint32_t kOpen = 1u << 31;

// The phase this thread comes to next. A thread is in one job at a time.
thread_local uint32_t own_phase = 0;

}  // namespace

Team::Team(int threads) : size_(threads) {
    for (int worker = 1; worker < threads; worker++) threads_.emplace_back([this, worker] { work(worker); });
}

Team::~Team() {
    stopping_.store(true);
    jobs_started_.advance();
    for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& job) {
    if (size_ == 1) return job(0);
    job_ = &job;
    first_phase_ = own_phase = phase_.value();
    gate_.store(kOpen, std::memory_order_release);
    jobs_started_.advance();
    job(0);
    // Nobody enters any more; those inside find every phase over and walk out.
    uint32_t departures = left_.value();
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
    while (gate_.load(std::memory_order_acquire) != 0) {
        left_.wait_while(departures);
        departures = left_.value();
    }
}

void Team::work(int worker) {
    for (uint32_t seen = 0;;) {
        jobs_started_.wait_while(seen);
        // Read before we enter, so that a job that starts while we are inside is not missed. We may enter one twice
        // and find its phases over. Read before we look whether to stop, too: the advance that says so is either
        // not in `seen`, and we wake for it, or it is, and we see `stopping_`.
        seen = jobs_started_.value();
        if (stopping_.load()) return;
        if (!enter()) continue;
        own_phase = first_phase_;
        (*job_)(worker);
        leave();
    }
}

bool Team::enter() {
    uint32_t gate = gate_.load(std::memory_order_acquire);
    while ((gate & kOpen) != 0) {
        if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
}

void Team::leave() {
    gate_.fetch_sub(1, std::memory_order_acq_rel);
    left_.advance();
}

uint32_t Team::next_phase() { return own_phase++; }

int Team::claim(uint32_t phase, int count, int chunk) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(ticket >> 32) == phase) {
        const int item = static_cast<int>(ticket & 0xffffffffu);
        if (item >= count) return count;
        if (ticket_.compare_exchange_weak(ticket, ticket + static_cast<uint32_t>(chunk), std::memory_order_acq_rel)) {
            return item;
        }
    }
    return count;
}

void Team::finish(uint32_t phase, int items, int count) {
    if (done_.fetch_add(items, std::memory_order_acq_rel) + items < count) return;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(static_cast<uint64_t>(phase + 1) << 32, std::memory_order_release);
    phase_.advance();
}

}  // namespace sojourn
