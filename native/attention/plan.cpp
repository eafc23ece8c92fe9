#include "native/attention/plan.h"

#include <algorithm>

namespace sojourn {

namespace {

// Units that cost more than this part of a thread's share are worth cutting.
constexpr int kPartsPerThread = 4;

long cost_of(const PlannedUnit& unit) { return static_cast<long>(unit.span_end - unit.span_begin) * (unit.tokens + 1); }

// A tile of rows of one sequence, for every KV head.
void add_tile(const AttentionShape& shape, PlannedUnit tile, std::vector<PlannedUnit>& units) {
    const int first_seen = shape.window > 0 ? std::max(0, tile.first_position + 1 - shape.window) : 0;
    tile.span_begin = first_seen / kSpan;
    tile.span_end = (tile.first_position + tile.tokens - 1) / kSpan + 1;
    for (tile.kv_head = 0; tile.kv_head < shape.num_kv_heads; tile.kv_head++) units.push_back(tile);
}

// Replaces a unit by one per span and says where the rows find their records.
void split(const AttentionShape& shape, const PlannedUnit& unit, AttentionPlan& plan) {
    PlannedUnit part = unit;
    part.is_split = true;
    part.partials = plan.num_partials;
    part.partial_first = unit.span_begin;
    part.partial_spans = unit.span_end - unit.span_begin;
    const size_t spans = static_cast<size_t>(part.partial_spans);
    const size_t rows = static_cast<size_t>(unit.tokens) * static_cast<size_t>(shape.group);
    if (unit.kv_head == 0) {
        for (int token = 0; token < unit.tokens; token++) {
            PlannedMerge& merge = plan.merges[static_cast<size_t>(unit.row + token)];
            merge.spans = part.partial_spans;
            merge.partials = part.partials + static_cast<size_t>(token) * static_cast<size_t>(shape.group) * spans;
            merge.head_stride = spans;
            merge.kv_head_stride = rows * spans;
        }
    }
    plan.num_partials += rows * spans;
    for (int span = unit.span_begin; span < unit.span_end; span++) {
        part.span_begin = span;
        part.span_end = span + 1;
        plan.units.push_back(part);
    }
}

}  // namespace

void plan_attention(std::span<const int32_t> starts, std::span<const int32_t> lengths, const AttentionShape& shape,
                    AttentionPlan& plan) {
    std::vector<PlannedUnit> whole;
    const int tile_tokens = tokens_per_unit(shape.group);
    int row = 0;
    for (size_t i = 0; i < starts.size(); i++) {
        for (int done = 0; done < lengths[i]; done += tile_tokens) {
            PlannedUnit tile;
            tile.sequence = static_cast<int>(i);
            tile.row = row + done;
            tile.tokens = std::min(tile_tokens, lengths[i] - done);
            tile.first_position = starts[i] + done;
            add_tile(shape, tile, whole);
        }
        row += lengths[i];
    }

    long total = 0;
    for (const PlannedUnit& unit : whole) total += cost_of(unit);
    plan.units.clear();
    plan.merges.assign(static_cast<size_t>(row), PlannedMerge{});
    plan.num_partials = 0;
    for (const PlannedUnit& unit : whole) {
        const bool is_costly = cost_of(unit) * shape.threads * kPartsPerThread > total;
        if (shape.threads > 1 && is_costly && unit.span_end - unit.span_begin > 1) {
            split(shape, unit, plan);
        } else {
            plan.units.push_back(unit);
        }
    }
    std::stable_sort(plan.units.begin(), plan.units.end(),
                     [](const PlannedUnit& a, const PlannedUnit& b) { return cost_of(a) > cost_of(b); });
}

}  // namespace sojourn
