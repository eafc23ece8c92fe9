// Threads: every item once, nothing before its phase, late workers, and stopping at any moment.
#include <atomic>
#include <thread>
#include <vector>

#include "native/tests/check.h"
#include "native/threads/team.h"

namespace sojourn::test {
namespace {

void test_every_item_once(Team& team) {
    for (int round = 0; round < 200; round++) {
        const int count = round * 7 % 61;
        std::vector<std::atomic<int>> seen(64), doubled(64);
        team.run([&](int) {
            team.for_each(count, 1 + round % 5, [&](int i) { seen[i]++; });
            // Reads what other workers wrote in the phase before.
            team.for_each(count, 1, [&](int i) { doubled[i] = 2 * seen[count - 1 - i]; });
        });
        for (int i = 0; i < 64; i++) {
            check(seen[i] == (i < count ? 1 : 0), "item %d of %d ran %d times", i, count, seen[i].load());
            check(doubled[i] == (i < count ? 2 : 0), "item %d of %d saw %d", i, count, doubled[i].load());
        }
    }
}

// The caller takes part in every job once, and nobody is inside after a job.
void test_who_enters(Team& team) {
    std::atomic<int> entered{0};
    std::atomic<int> inside{0};
    for (int round = 0; round < 200; round++) {
        team.run([&](int worker) {
            inside++;
            if (worker == 0) entered++;
            team.for_each(3, 1, [](int) {});
            inside--;
        });
        check(inside == 0, "%d workers are inside after the job", inside.load());
    }
    check(entered == 200, "the caller entered %d of 200 jobs", entered.load());
}

// Nobody waits for a worker that does not come: each phase is held up by its items only.
void test_a_late_worker_holds_nobody_up(Team& team) {
    std::atomic<int> phases{0};
    std::atomic<bool> is_over{false};
    team.run([&](int worker) {
        while (worker != 0 && !is_over) std::this_thread::yield();
        for (int phase = 0; phase < 100; phase++) team.for_each(4, 1, [&](int i) { phases += i == 0; });
        is_over = true;
    });
    check(phases == 100, "%d of 100 phases ran", phases.load());
}

// A helper that wakes for the job, and meets the end of the team on its way in, must not sleep through it.
void test_stopping_right_after_a_job() {
    for (int round = 0; round < 2000; round++) {
        std::atomic<bool> is_awake{false};
        Team team(2);
        team.run([&](int worker) {
            if (worker != 0) is_awake = true;
            while (!is_awake) std::this_thread::yield();
        });
        team.run([](int) {});
        for (int pause = 0; pause < round % 8; pause++) std::this_thread::yield();
    }
}

}  // namespace
}  // namespace sojourn::test

int main() {
    using namespace sojourn;
    for (const int threads : {1, 2, 3, 7}) {
        Team team(threads);
        test::test_every_item_once(team);
        test::test_who_enters(team);
        test::test_a_late_worker_holds_nobody_up(team);
    }
    for (int i = 0; i < 50; i++) Team idle(3);
    test::test_stopping_right_after_a_job();
    return test::report("test_team");
}
