// What one unit of attention work is: some query rows of one sequence against one KV head. Plain data, no arithmetic.
//
// Positions are cut into spans at fixed absolute places. The partial result of a row over one span is computed from
// scratch, and partials are merged in ascending order. A long row may therefore be spread over threads, or looped over
// by one, or share a tile with other rows: the operations on it, and so its bits, are the same.
//
//     positions  0 ........ 255 | 256 ........ 511 | 512 ....      spans
//     row             (m, l, o) +        (m, l, o) +  (m, l, o)    partial: maximum, sum of exponentials, weighted values
#pragma once
#include <cstddef>
#include <cstdint>

#include "native/kv/store.h"

namespace sojourn {

inline constexpr int kSpan = 256;
inline constexpr int kSpanBlocks = kSpan / kBlock;

// A partial takes head_dim floats for o, then m, then l; the rest keeps records aligned.
constexpr int partial_stride(int head_dim) { return head_dim + 16; }

// K and V of one sequence in one layer for one KV head.
struct PagedHead {
    const std::byte* page_zero = nullptr;  // this head in page 0 of this layer
    size_t page_bytes = 0;                 // from a page to the next
    const int32_t* pages = nullptr;        // the sequence's table
    int num_pages = 0;
    int page_size = 0;
};

struct AttentionUnit {
    PagedHead kv;
    int head_dim = 0;
    int tokens = 0;          // query rows are tokens x group
    int group = 0;           // query heads that share the KV head
    int first_position = 0;  // of the first token
    int window = 0;          // tokens a row sees, itself included; 0: all
    int span_begin = 0;
    int span_end = 0;
    float scale = 1.0f;
    float softcap = 0.0f;
    const float* query = nullptr;  // [tokens][query_stride], the group's heads adjacent
    size_t query_stride = 0;
    float* output = nullptr;  // as query; written when all spans are ours
    size_t output_stride = 0;
    // Where spans are shared out: record of (row, span) at partials[(row * partial_spans + span - partial_first)].
    float* partials = nullptr;
    int partial_first = 0;
    int partial_spans = 0;
};

// Working memory of one worker, sized for the largest unit.
struct AttentionScratch {
    float* queries = nullptr;   // rows_max x head_dim
    float* running = nullptr;   // rows_max x partial_stride
    float* current = nullptr;   // rows_max x partial_stride
    std::byte* gathered = nullptr;  // a span of K and V, for pages smaller than a block
};

}  // namespace sojourn
