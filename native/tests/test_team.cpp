// Threads: every item once, nothing before its barrier, and stopping at any moment.
#include <atomic>
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

void test_every_worker_enters(Team& team) {
    std::vector<std::atomic<int>> entered(static_cast<size_t>(team.size()));
    for (int round = 0; round < 50; round++) team.run([&](int worker) { entered[worker]++; });
    for (auto& count : entered) check(count == 50, "a worker entered %d of 50 jobs", count.load());
}

}  // namespace
}  // namespace sojourn::test

int main() {
    using namespace sojourn;
    for (const int threads : {1, 2, 3, 7}) {
        Team team(threads);
        test::test_every_item_once(team);
        test::test_every_worker_enters(team);
    }
    for (int i = 0; i < 50; i++) Team idle(3);
    return test::report("test_team");
}
