#include "native/step/core.h"

#include <stdexcept>
#include <utility>

#include "native/step/validate.h"

namespace sojourn {

namespace {

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

std::unique_ptr<const Model> checked(std::unique_ptr<const Model> model, const CoreOptions& options) {
    model->check_complete();
    const int size = options.page_size;
    require(size >= 1 && size <= kSpan && (size & (size - 1)) == 0, "page_size must be a power of two, 1 to 256");
    require(options.num_pages[kFull] >= 1 && options.num_pages[kSliding] >= 1, "a pool needs at least the null page");
    require(options.threads >= 1 && options.threads <= 1024, "threads must be in [1, 1024]");
    require(options.sequences >= 1, "sequences must be at least 1");
    return model;
}

std::vector<LayerPlace> places_of(const ModelConfig& config) {
    std::vector<LayerPlace> places;
    int used[kPools] = {0, 0};
    for (const bool slides : config.layer_slides) {
        const int pool = slides ? kSliding : kFull;
        places.push_back({pool, used[pool]++});
    }
    return places;
}

KvStore store_of(const ModelConfig& config, const CoreOptions& options, int pool) {
    KvShape shape;
    for (const bool slides : config.layer_slides) shape.layers += (slides ? kSliding : kFull) == pool;
    shape.pages = options.num_pages[pool];
    shape.kv_heads = config.num_kv_heads;
    shape.head_dim = config.head_dim;
    shape.page_size = options.page_size;
    shape.type = options.kv_type;
    return KvStore(shape);
}

}  // namespace

Core::Core(std::unique_ptr<const Model> model, const CoreOptions& options)
    : model_(checked(std::move(model), options)),
      options_(options),
      kernels_(kernels_for(options.isa)),
      places_(places_of(model_->config())),
      stores_{store_of(model_->config(), options, kFull), store_of(model_->config(), options, kSliding)},
      tables_(options.sequences),
      team_(options.threads),
      forward_(*model_, kernels_, team_, places_, stores_.data(), tables_) {}

void Core::step(const Batch& batch, const BatchOutput& output) {
    check_and_edit(batch);
    forward_.run(batch, output);
}

const KvStore& Core::store(int pool) const {
    require(pool >= 0 && pool < kPools, "there is no such pool");
    return stores_[static_cast<size_t>(pool)];
}

void Core::read_pages(int pool, std::span<const int32_t> pages, std::byte* target) const {
    const KvStore& kv = store(pool);
    for (const int32_t page : pages) require(page > 0 && page < kv.shape().pages, "a page to read is not in the pool");
    for (size_t i = 0; i < pages.size(); i++) kv.copy_out(pages[i], target + i * kv.shape().page_bytes());
}

void Core::write_pages(int pool, std::span<const int32_t> pages, const std::byte* source) {
    const KvStore& kv = store(pool);
    for (const int32_t page : pages) require(page > 0 && page < kv.shape().pages, "a page to write is not in the pool");
    for (size_t i = 0; i < pages.size(); i++) kv.copy_in(pages[i], source + i * kv.shape().page_bytes());
}

void Core::check_and_edit(const Batch& batch) {
    Limits limits{model_->config(), options_.page_size, {}, {}};
    for (int pool = 0; pool < kPools; pool++) {
        limits.num_pages[pool] = options_.num_pages[pool];
        limits.has_layers[pool] = stores_[static_cast<size_t>(pool)].shape().layers > 0;
    }
    check_rows(batch, limits, tables_.sequences());
    check_edits(batch, limits, tables_.sequences());
    for (const TableEdit& edit : batch.edits) tables_.set(edit.sequence, edit.pool, edit.index, edit.page);
    check_pages(batch, limits, tables_);
}

}  // namespace sojourn
