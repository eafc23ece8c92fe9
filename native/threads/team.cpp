#include "native/threads/team.h"

namespace sojourn {

Team::Team(int threads) : size_(threads), barrier_(threads) {
    for (int worker = 1; worker < threads; worker++) threads_.emplace_back([this, worker] { work(worker); });
}

Team::~Team() {
    stopping_.store(true);
    jobs_started_.fetch_add(1, std::memory_order_seq_cst);
    wake_all(jobs_started_, parked_);
    for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& job) {
    if (size_ == 1) return job(0);
    job_ = &job;
    jobs_started_.fetch_add(1, std::memory_order_seq_cst);
    wake_all(jobs_started_, parked_);
    job(0);
    barrier_.arrive_and_wait([] {});
}

void Team::work(int worker) {
    for (uint32_t seen = 0;; seen++) {
        wait_for_change(jobs_started_, seen, parked_);
        if (stopping_.load()) return;
        (*job_)(worker);
        barrier_.arrive_and_wait([] {});
    }
}

}  // namespace sojourn
