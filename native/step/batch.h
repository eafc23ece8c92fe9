// One step as plain arrays, borrowed from the caller for the time of the call.
#pragma once
#include <cstdint>
#include <span>

#include "native/sampler/sampler.h"

namespace sojourn {

struct TableEdit {
    int32_t sequence;
    int32_t pool;
    int32_t index;
    int32_t page;
};

// Sequence i has rows for positions [starts[i], starts[i] + lengths[i]), in order.
struct Batch {
    std::span<const int32_t> tokens;
    std::span<const int32_t> sequences;
    std::span<const int32_t> starts;
    std::span<const int32_t> lengths;
    std::span<const TableEdit> edits;  // applied in order before anything runs; a table ends at its last edit
    std::span<const int32_t> logit_rows;  // of all rows, ascending
    std::span<const SamplingRow> sampling;  // one per logit row, or empty: no draw
    int num_logprobs = -1;                  // -1: none; 0: the drawn token's; k: the k best too
};

// Where results go. Pointers are null for what is not wanted; otherwise they have room for every logit row.
struct BatchOutput {
    int32_t* tokens = nullptr;
    float* logprobs = nullptr;
    int32_t* top_ids = nullptr;     // [rows, num_logprobs]
    float* top_logprobs = nullptr;  // [rows, num_logprobs]
    float* logits = nullptr;        // [rows, vocab_size]
};

}  // namespace sojourn
