// Runs a unit of attention work: packs its queries, walks its spans, merges or hands out the partials.
#pragma once
#include "native/attention/span.h"

namespace sojourn {

template <class L>
struct Attend {
    using Kernel = Attention<L>;
    using Visible = typename Kernel::Visible;

    // Sums that the registers carry at once, and so the query rows of the largest tile. More than twelve would fit into
    // 32 registers and measured slower: the multipliers are busy with twelve, and wider tiles lose the first cache level.
    static constexpr int kSums = L::kRegisters >= 32 ? 12 : L::kRegisters - 2 > 4 ? 6 : 4;
    static constexpr int kRows = kSums;

    static int smaller(int a, int b) { return a < b ? a : b; }
    static int larger(int a, int b) { return a > b ? a : b; }

    // Rows are cut into tiles of nearly equal height.
    static int next_tile(int rows_left) {
        const int tiles = (rows_left + kRows - 1) / kRows;
        return (rows_left + tiles - 1) / tiles;
    }

    static const float* query_of(const AttentionUnit& unit, int row) {
        const size_t token = static_cast<size_t>(row / unit.group);
        return unit.query + token * unit.query_stride + static_cast<size_t>(row % unit.group) * unit.head_dim;
    }

    // Queries times scale, per tile as [head_dim][rows of the tile].
    static void pack_queries(const AttentionUnit& unit, float* packed) {
        const int rows = unit.tokens * unit.group;
        for (int row = 0; row < rows;) {
            const int height = next_tile(rows - row);
            for (int r = 0; r < height; r++) {
                const float* query = query_of(unit, row + r);
                for (int d = 0; d < unit.head_dim; d++) packed[d * height + r] = query[d] * unit.scale;
            }
            packed += static_cast<size_t>(height) * unit.head_dim;
            row += height;
        }
    }

    template <int R, class E>
    static void run_tile(int height, const float* queries, const SpanBlocks<L, E>& blocks, const Visible* visible,
                         const AttentionUnit& unit, float* partials) {
        if (height == R) {
            Kernel::template span<R, kSums>(queries, blocks, visible, unit.head_dim, unit.softcap, partials);
        } else if constexpr (R > 1) {
            run_tile<R - 1>(height, queries, blocks, visible, unit, partials);
        }
    }

    // Partials of all rows over one span, into `partials` (rows x partial_stride).
    template <class E>
    static void run_span(const AttentionUnit& unit, int span, const AttentionScratch& scratch, float* partials) {
        const int start = span * kSpan;
        const int end = smaller(start + kSpan, unit.first_position + unit.tokens);
        const int begin = unit.window > 0 ? larger(start, unit.first_position + 1 - unit.window) : start;
        SpanBlocks<L, E> blocks;
        locate_blocks<L, E>(unit.kv, unit.head_dim, begin, end, reinterpret_cast<E*>(scratch.gathered), blocks);

        const int rows = unit.tokens * unit.group;
        const float* queries = scratch.queries;
        for (int row = 0; row < rows;) {
            const int height = next_tile(rows - row);
            Visible visible[kRows];
            for (int r = 0; r < height; r++) {
                const int last = unit.first_position + (row + r) / unit.group;
                visible[r].begin = unit.window > 0 ? last + 1 - unit.window - start : -start;
                visible[r].end = last + 1 - start;
            }
            run_tile<kRows>(height, queries, blocks, visible, unit, partials);
            queries += static_cast<size_t>(height) * unit.head_dim;
            partials += static_cast<size_t>(height) * partial_stride(unit.head_dim);
            row += height;
        }
    }

    template <class E>
    static void attend(const AttentionUnit& unit, const AttentionScratch& scratch) {
        const int rows = unit.tokens * unit.group;
        const int stride = partial_stride(unit.head_dim);
        pack_queries(unit, scratch.queries);
        if (unit.partials == nullptr) {
            for (int row = 0; row < rows; row++) Kernel::clear(scratch.running + row * stride, unit.head_dim);
        }
        for (int span = unit.span_begin; span < unit.span_end; span++) {
            run_span<E>(unit, span, scratch, scratch.current);
            for (int row = 0; row < rows; row++) {
                const float* partial = scratch.current + row * stride;
                if (unit.partials == nullptr) {
                    Kernel::merge(scratch.running + row * stride, partial, unit.head_dim);
                } else {
                    const size_t record = static_cast<size_t>(row) * unit.partial_spans + span - unit.partial_first;
                    float* target = unit.partials + record * stride;
                    for (int i = 0; i < stride; i++) target[i] = partial[i];
                }
            }
        }
        if (unit.partials != nullptr) return;
        for (int row = 0; row < rows; row++) {
            const size_t token = static_cast<size_t>(row / unit.group);
            float* output = unit.output + token * unit.output_stride + (row % unit.group) * unit.head_dim;
            Kernel::finish(scratch.running + row * stride, unit.head_dim, output);
        }
    }

    // The entries of the table of kernels.
    static void attend_f16(const AttentionUnit& unit, const AttentionScratch& scratch) {
        attend<uint16_t>(unit, scratch);
    }
    static void attend_f32(const AttentionUnit& unit, const AttentionScratch& scratch) { attend<float>(unit, scratch); }

    // Output of one row and head from `count` partials, the last step of what `attend` does alone.
    static void merge_partials(const float* partials, int count, int head_dim, float* running, float* output) {
        Kernel::clear(running, head_dim);
        for (int i = 0; i < count; i++) Kernel::merge(running, partials + i * partial_stride(head_dim), head_dim);
        Kernel::finish(running, head_dim, output);
    }
};

}  // namespace sojourn
