// Page tables of the running sequences, one per sequence row and pool. Changed only by the edits of a step.
//
// A table ends at its last edit: an edit forgets what stood past its index, so whoever changes an entry tells all that
// follow, and a sequence that is told from page 0 on finds nothing that the row's previous sequence left.
#pragma once
#include <cstdint>
#include <vector>

namespace sojourn {

inline constexpr int kPools = 2;  // full attention, sliding window
inline constexpr int kFull = 0;
inline constexpr int kSliding = 1;

class PageTables {
public:
    explicit PageTables(int sequences) : tables_(static_cast<size_t>(sequences) * kPools) {}

    int sequences() const { return static_cast<int>(tables_.size() / kPools); }
    const std::vector<int32_t>& pages(int sequence, int pool) const { return table(sequence, pool).pages; }

    // No entry at this index or past it is the null page. Kept by the edits, so that a step need not walk its history.
    int live_from(int sequence, int pool) const { return table(sequence, pool).live_from; }

    // Entry `index` becomes `page` and the last; entries that a growing table skips are the null page.
    void set(int sequence, int pool, int index, int page) {
        Table& table = tables_[index_of(sequence, pool)];
        auto& pages = table.pages;
        if (index > static_cast<int>(pages.size())) table.live_from = index;
        pages.resize(static_cast<size_t>(index), 0);
        pages.push_back(page);
        if (page == 0) {
            table.live_from = index + 1;
        } else if (index < table.live_from) {  // the null pages that counted are gone; others may lie before
            table.live_from = index;
            while (table.live_from > 0 && pages[static_cast<size_t>(table.live_from) - 1] != 0) table.live_from--;
        }
    }

private:
    struct Table {
        std::vector<int32_t> pages;
        int live_from = 0;
    };

    static size_t index_of(int sequence, int pool) { return static_cast<size_t>(sequence) * kPools + pool; }
    const Table& table(int sequence, int pool) const { return tables_[index_of(sequence, pool)]; }

    std::vector<Table> tables_;
};

}  // namespace sojourn
