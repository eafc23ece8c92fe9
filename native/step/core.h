// The core: a model with its KV memory, page tables and threads. One call is one step.
#pragma once
#include <array>
#include <memory>
#include <span>

#include "native/step/forward.h"

namespace sojourn {

struct CoreOptions {
    int page_size = 16;
    int num_pages[kPools] = {0, 0};  // the null page included
    KvType kv_type = KvType::F16;
    int threads = 1;
    int sequences = 1;
    Isa isa = Isa::Portable;
};

class Core {
public:
    // Throws std::invalid_argument naming what is missing or out of bounds.
    Core(std::unique_ptr<const Model> model, const CoreOptions& options);

    // Throws std::invalid_argument for a batch that may not run: no KV is written, but its edits may be in the tables;
    // std::runtime_error for keys, values or logits that are not finite numbers. One caller at a time.
    void step(const Batch& batch, const BatchOutput& output);

    // KV of pages of one pool, outside it and back (see KvStore::copy_out). Throws std::invalid_argument for a page that is
    // not in the pool, or is its null page.
    size_t page_bytes(int pool) const { return store(pool).shape().page_bytes(); }
    void read_pages(int pool, std::span<const int32_t> pages, std::byte* target) const;
    void write_pages(int pool, std::span<const int32_t> pages, const std::byte* source);

    const ModelConfig& config() const { return model_->config(); }
    const char* instruction_set() const { return kernels_.name; }

private:
    void check_and_edit(const Batch& batch);
    const KvStore& store(int pool) const;

    std::unique_ptr<const Model> model_;
    CoreOptions options_;
    const Kernels& kernels_;
    std::vector<LayerPlace> places_;
    std::array<KvStore, kPools> stores_;
    PageTables tables_;
    Team team_;
    Forward forward_;
};

}  // namespace sojourn
