// The door: refuses a batch that would touch memory it must not, before any of that memory is touched. Only the page
// tables may have changed by then: pages are checked once the batch's edits are in them.
#pragma once
#include "native/kv/store.h"
#include "native/kv/tables.h"
#include "native/model/model.h"
#include "native/step/batch.h"

namespace sojourn {

struct Limits {
    const ModelConfig& config;
    int page_size;
    int num_pages[kPools];
    bool has_layers[kPools];  // whether any layer keeps its KV in this pool
};

// Throws std::invalid_argument naming the value and its bound.
void check_rows(const Batch& batch, const Limits& limits, int sequences);
void check_edits(const Batch& batch, const Limits& limits, int sequences);

// After the edits: every page that a row writes to or sees is in the table and is not the null page. O(1) a sequence:
// the tables know where their null pages end.
void check_pages(const Batch& batch, const Limits& limits, const PageTables& tables);

}  // namespace sojourn
