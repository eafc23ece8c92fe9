// Page tables of the running sequences, one per sequence row and pool. Changed only by the edits of a step.
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
    const std::vector<int32_t>& pages(int sequence, int pool) const { return tables_[index_of(sequence, pool)]; }

    // Entry `index` becomes `page`; entries that a growing table skips are the null page.
    void set(int sequence, int pool, int index, int page) {
        auto& table = tables_[index_of(sequence, pool)];
        if (index >= static_cast<int>(table.size())) table.resize(static_cast<size_t>(index) + 1, 0);
        table[static_cast<size_t>(index)] = page;
    }

private:
    static size_t index_of(int sequence, int pool) { return static_cast<size_t>(sequence) * kPools + pool; }

    std::vector<std::vector<int32_t>> tables_;
};

}  // namespace sojourn
