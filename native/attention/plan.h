// Cuts the attention of a step into units, once per pool; the same units serve every layer of the pool.
#pragma once
#include <span>
#include <vector>

#include "native/attention/unit.h"

namespace sojourn {

// A unit without the layer: which rows, which KV head, which spans.
struct PlannedUnit {
    int sequence = 0;  // index in the batch
    int row = 0;       // first of the step's rows
    int tokens = 0;
    int first_position = 0;
    int kv_head = 0;
    int span_begin = 0;
    int span_end = 0;
    // Set where a row's spans are shared out over units.
    bool is_split = false;
    size_t partials = 0;  // index of the first record
    int partial_first = 0;
    int partial_spans = 0;
};

// Records of a row whose spans were shared out; they are [group head][span], KV head after KV head.
struct PlannedMerge {
    size_t partials = 0;
    int spans = 0;  // 0: the row's unit did it all
    size_t head_stride = 0;     // records from one head of a group to the next
    size_t kv_head_stride = 0;  // records from one KV head to the next
};

struct AttentionPlan {
    std::vector<PlannedUnit> units;     // costly ones first
    std::vector<PlannedMerge> merges;   // one per row of the step
    size_t num_partials = 0;
};

struct AttentionShape {
    int num_kv_heads = 0;
    int group = 0;
    int window = 0;  // 0: none
    int threads = 0;
};

// Query rows that share the work of reading K and V, where the group's heads alone do not fill them.
inline constexpr int kUnitRows = 24;

constexpr int tokens_per_unit(int group) { return group >= kUnitRows ? 1 : kUnitRows / group; }

// How the units are cut follows the load and the threads, and cannot be seen in any result.
// Sequence i has rows for positions [starts[i], starts[i] + lengths[i]).
void plan_attention(std::span<const int32_t> starts, std::span<const int32_t> lengths, const AttentionShape& shape,
                    AttentionPlan& plan);

}  // namespace sojourn
