#include "native/step/forward.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "native/kv/place.h"
#include "native/step/products.h"

namespace sojourn {

namespace {

// Logits of so many rows are held at a time when the caller does not want them.
constexpr int kLogitRows = 32;

bool is_quantised(const Matrix& matrix) { return matrix.kind != MatrixKind::F32; }

template <class Predicate>
bool any_layer(const Model& model, Predicate predicate) {
    for (int i = 0; i < model.config().num_layers(); i++) {
        if (predicate(model.layer(i))) return true;
    }
    return false;
}

bool normed_is_quantised(const Model& model) {
    return is_quantised(model.head()) || any_layer(model, [](const LayerWeights& layer) {
               return is_quantised(layer.q) || is_quantised(layer.k) || is_quantised(layer.v) ||
                      is_quantised(layer.gate) || is_quantised(layer.up);
           });
}

template <class T>
T* row_of(const Buffer<T>& buffer, int row, int cols) {
    return buffer.data() + static_cast<size_t>(row) * static_cast<size_t>(cols);
}

}  // namespace

Forward::Forward(const Model& model, const Kernels& kernels, Team& team, const std::vector<LayerPlace>& places,
                 const KvStore* stores, const PageTables& tables)
    : model_(model),
      config_(model.config()),
      kernels_(kernels),
      team_(team),
      places_(places),
      stores_(stores),
      tables_(tables),
      normed_(config_.hidden_size, normed_is_quantised(model)),
      attended_(config_.query_size(), any_layer(model, [](const LayerWeights& layer) { return is_quantised(layer.o); })),
      inner_(config_.intermediate_size,
             any_layer(model, [](const LayerWeights& layer) { return is_quantised(layer.down); })) {
    const size_t unit_rows = static_cast<size_t>(tokens_per_unit(config_.group()) * config_.group());
    const size_t head_dim = static_cast<size_t>(config_.head_dim);
    const size_t partial = static_cast<size_t>(partial_stride(config_.head_dim));
    for (int worker = 0; worker < team.size(); worker++) {
        workers_.push_back(Worker{{}, {}, {}, {}, Sampler(kernels, config_.vocab_size)});
        workers_.back().queries.ensure(unit_rows * head_dim);
        workers_.back().running.ensure(unit_rows * partial);
        workers_.back().current.ensure(unit_rows * partial);
        if (stores[kFull].shape().page_size < kBlock) {
            workers_.back().gathered.ensure(size_t{2} * kSpan * head_dim * sizeof(float));
        }
    }
}

void Forward::run(const Batch& batch, const BatchOutput& output) {
    if (batch.tokens.empty()) return;
    prepare(batch);
    team_.run([&](int worker) { work(worker, batch, output); });
    // First, because logits that are not numbers follow from it, where a row of the same sequence is sampled at all.
    if (stored_badly_ >= 0) {
        throw std::runtime_error("the keys or values of row " + std::to_string(stored_badly_) +
                                 " are not finite numbers");
    }
    if (drawn_badly_ >= 0) {
        throw std::runtime_error("the logits of row " + std::to_string(drawn_badly_) + " are not finite numbers");
    }
}

void Forward::prepare(const Batch& batch) {
    plan_rows(batch);
    const size_t rows = static_cast<size_t>(rows_);
    const size_t hidden = static_cast<size_t>(config_.hidden_size);
    const size_t kv = static_cast<size_t>(config_.kv_size());
    hidden_.ensure(rows * hidden);
    if (config_.post_norms) branch_.ensure(rows * hidden);
    query_.ensure(rows * static_cast<size_t>(config_.query_size()));
    key_.ensure(rows * kv);
    value_.ensure(rows * kv);
    rotations_.ensure(rows * kPools * static_cast<size_t>(config_.head_dim));
    normed_.ensure(rows_);
    attended_.ensure(rows_);
    inner_.ensure(rows_);
    const size_t records = std::max(plans_[kFull].num_partials, plans_[kSliding].num_partials);
    partials_.ensure(records * static_cast<size_t>(partial_stride(config_.head_dim)));
    logits_.ensure(static_cast<size_t>(std::min<size_t>(kLogitRows, batch.logit_rows.size())) *
                   static_cast<size_t>(config_.vocab_size));
    drawn_badly_ = -1;
    stored_badly_ = -1;
}

void Forward::plan_rows(const Batch& batch) {
    rows_ = static_cast<int>(batch.tokens.size());
    row_sequence_.clear();
    row_position_.clear();
    for (size_t i = 0; i < batch.sequences.size(); i++) {
        for (int j = 0; j < batch.lengths[i]; j++) {
            row_sequence_.push_back(static_cast<int>(i));
            row_position_.push_back(batch.starts[i] + j);
        }
    }
    AttentionShape shape;
    shape.num_kv_heads = config_.num_kv_heads;
    shape.group = config_.group();
    shape.threads = team_.size();
    for (int pool = 0; pool < kPools; pool++) {
        shape.window = pool == kSliding ? config_.sliding_window : 0;
        if (stores_[pool].shape().layers > 0) plan_attention(batch.starts, batch.lengths, shape, plans_[pool]);
    }
}

void Forward::work(int worker, const Batch& batch, const BatchOutput& output) {
    embed(batch);
    const float* post_norm = nullptr;
    for (int index = 0; index < config_.num_layers(); index++) {
        const LayerWeights& layer = model_.layer(index);
        normalise(layer.attn_norm, post_norm);
        project(layer);
        place_keys_and_values(batch, index);
        attend(batch, index, worker);
        gather_attention(index, worker);
        add_product(layer.o, attended_);
        normalise(layer.ffn_norm, layer.post_attn_norm);
        feed_forward(layer);
        add_product(layer.down, inner_);
        post_norm = layer.post_ffn_norm;
    }
    if (batch.logit_rows.empty()) return;
    head(worker, batch, output);
}

void Forward::embed(const Batch& batch) {
    team_.for_each(rows_, 4, [&](int row) {
        kernels_.embed_row(model_.embed(), batch.tokens[static_cast<size_t>(row)],
                           row_of(hidden_, row, config_.hidden_size), config_.embedding_scale);
        fill_rotations(row);
    });
}

// cos and sin of a row's angles, for each kind of layer. The angle is a product of floats, as models were trained.
void Forward::fill_rotations(int row) {
    const int half = config_.head_dim / 2;
    const float position = static_cast<float>(row_position_[static_cast<size_t>(row)]);
    for (int pool = 0; pool < kPools; pool++) {
        if (stores_[pool].shape().layers == 0) continue;
        const Rope& rope = pool == kSliding ? config_.rope_sliding : config_.rope;
        float* cosines = row_of(rotations_, row * kPools + pool, config_.head_dim);
        for (int i = 0; i < half; i++) {
            const double angle = static_cast<double>(position * rope.inv_freq[static_cast<size_t>(i)]);
            cosines[i] = static_cast<float>(std::cos(angle)) * rope.attention_factor;
            cosines[half + i] = static_cast<float>(std::sin(angle)) * rope.attention_factor;
        }
    }
}

// Ends a branch, if it has a norm of its own, and norms the residual stream for the next products.
void Forward::normalise(const float* weight, const float* post_norm) {
    const int n = config_.hidden_size;
    team_.for_each(rows_, 1, [&](int row) {
        float* hidden = row_of(hidden_, row, n);
        if (post_norm != nullptr) {
            float* branch = row_of(branch_, row, n);
            kernels_.rms_norm(branch, post_norm, config_.rms_norm_eps, n, branch);
            kernels_.add(hidden, branch, n);
        }
        kernels_.rms_norm(hidden, weight, config_.rms_norm_eps, n, normed_.row(row));
        normed_.seal(kernels_, row);
    });
}

void Forward::project(const LayerWeights& layer) {
    multiply(team_, kernels_,
             {{layer.q, query_.data(), config_.query_size()},
              {layer.k, key_.data(), config_.kv_size()},
              {layer.v, value_.data(), config_.kv_size()}},
             normed_.view(), rows_);
}

void Forward::place_keys_and_values(const Batch& batch, int index) {
    team_.for_each(rows_, 1, [&](int row) { place_row(batch, index, row); });
}

// Biases, norms and rotation of a row's q and k, and its K and V into the pages.
void Forward::place_row(const Batch& batch, int index, int row) {
    const LayerWeights& layer = model_.layer(index);
    const LayerPlace place = places_[static_cast<size_t>(index)];
    const int head_dim = config_.head_dim;
    float* query = row_of(query_, row, config_.query_size());
    float* key = row_of(key_, row, config_.kv_size());
    float* value = row_of(value_, row, config_.kv_size());
    if (config_.qkv_bias) {
        kernels_.add(query, layer.q_bias, config_.query_size());
        kernels_.add(key, layer.k_bias, config_.kv_size());
        kernels_.add(value, layer.v_bias, config_.kv_size());
    }
    const float* cosines = row_of(rotations_, row * kPools + place.pool, head_dim);
    const auto turn = [&](float* heads, int count, const float* norm) {
        for (int i = 0; i < count; i++) {
            float* head = heads + i * head_dim;
            if (config_.qk_norm) kernels_.rms_norm(head, norm, config_.rms_norm_eps, head_dim, head);
            kernels_.rotate(head, cosines, cosines + head_dim / 2, head_dim / 2);
        }
    };
    turn(query, config_.num_heads, layer.q_norm);
    turn(key, config_.num_kv_heads, layer.k_norm);

    const KvStore& store = stores_[place.pool];
    const int page_size = store.shape().page_size;
    const int position = row_position_[static_cast<size_t>(row)];
    const int sequence = batch.sequences[static_cast<size_t>(row_sequence_[static_cast<size_t>(row)])];
    const int page = tables_.pages(sequence, place.pool)[static_cast<size_t>(position / page_size)];
    const PlaceInPage inside = place_in_page(store.shape(), position % page_size);
    const auto store_kv = store.shape().type == KvType::F16 ? kernels_.store_kv_f16 : kernels_.store_kv_f32;
    bool is_finite = true;
    for (int i = 0; i < config_.num_kv_heads; i++) {
        std::byte* head = store.head(place.index, page, i);
        is_finite &= store_kv(key + i * head_dim, value + i * head_dim, head_dim, head + inside.keys,
                              inside.key_stride, head + inside.values);
    }
    if (!is_finite) std::atomic_ref(stored_badly_).store(row);
}

AttentionUnit Forward::unit_of(const Batch& batch, const PlannedUnit& planned, int index) const {
    const LayerPlace place = places_[static_cast<size_t>(index)];
    const KvStore& store = stores_[place.pool];
    const auto& pages = tables_.pages(batch.sequences[static_cast<size_t>(planned.sequence)], place.pool);
    const int heads_before = planned.kv_head * config_.group() * config_.head_dim;
    AttentionUnit unit;
    unit.kv.page_zero = store.head(place.index, 0, planned.kv_head);
    unit.kv.page_bytes = store.shape().page_bytes_per_layer();
    unit.kv.pages = pages.data();
    unit.kv.num_pages = static_cast<int>(pages.size());
    unit.kv.page_size = store.shape().page_size;
    unit.head_dim = config_.head_dim;
    unit.tokens = planned.tokens;
    unit.group = config_.group();
    unit.first_position = planned.first_position;
    unit.window = place.pool == kSliding ? config_.sliding_window : 0;
    unit.span_begin = planned.span_begin;
    unit.span_end = planned.span_end;
    unit.scale = config_.query_scale;
    unit.softcap = config_.attention_softcap;
    unit.query = row_of(query_, planned.row, config_.query_size()) + heads_before;
    unit.query_stride = static_cast<size_t>(config_.query_size());
    unit.output = attended_.row(planned.row) + heads_before;
    unit.output_stride = static_cast<size_t>(config_.query_size());
    if (planned.is_split) {
        const size_t stride = static_cast<size_t>(partial_stride(config_.head_dim));
        unit.partials = partials_.data() + planned.partials * stride;
        unit.partial_first = planned.partial_first;
        unit.partial_spans = planned.partial_spans;
    }
    return unit;
}

void Forward::attend(const Batch& batch, int index, int worker) {
    const LayerPlace place = places_[static_cast<size_t>(index)];
    const auto& units = plans_[place.pool].units;
    const Worker& own = workers_[static_cast<size_t>(worker)];
    const AttentionScratch scratch{own.queries.data(), own.running.data(), own.current.data(), own.gathered.data()};
    const bool is_half = stores_[place.pool].shape().type == KvType::F16;
    const auto run = is_half ? kernels_.attend_f16 : kernels_.attend_f32;
    team_.for_each(static_cast<int>(units.size()), 1, [&](int i) {
        run(unit_of(batch, units[static_cast<size_t>(i)], index), scratch);
    });
}

// Merges what was shared out, and seals the rows for the output product.
void Forward::gather_attention(int index, int worker) {
    const AttentionPlan& plan = plans_[places_[static_cast<size_t>(index)].pool];
    const size_t stride = static_cast<size_t>(partial_stride(config_.head_dim));
    float* running = workers_[static_cast<size_t>(worker)].running.data();
    team_.for_each(rows_, 1, [&](int row) {
        const PlannedMerge& merge = plan.merges[static_cast<size_t>(row)];
        for (int head = 0; merge.spans > 0 && head < config_.num_heads; head++) {
            const size_t record = merge.partials +
                                  static_cast<size_t>(head / config_.group()) * merge.kv_head_stride +
                                  static_cast<size_t>(head % config_.group()) * merge.head_stride;
            kernels_.merge_partials(partials_.data() + record * stride, merge.spans, config_.head_dim, running,
                                    attended_.row(row) + head * config_.head_dim);
        }
        attended_.seal(kernels_, row);
    });
}

// The end of a branch: into the residual stream, or aside where a norm comes between.
void Forward::add_product(const Matrix& w, const ActivationRows& x) {
    if (config_.post_norms) {
        multiply(team_, kernels_, {{w, branch_.data(), config_.hidden_size}}, x.view(), rows_);
    } else {
        multiply(team_, kernels_, {{w, hidden_.data(), config_.hidden_size, Epilogue::Add}}, x.view(), rows_);
    }
}

void Forward::feed_forward(const LayerWeights& layer) {
    multiply_gated(team_, kernels_, layer.gate, layer.up, normed_.view(), rows_, inner_.row(0), inner_.cols(),
                   config_.activation);
    team_.for_each(rows_, 1, [&](int row) { inner_.seal(kernels_, row); });
}

void Forward::head(int worker, const Batch& batch, const BatchOutput& output) {
    const int n = config_.hidden_size;
    const int vocab = config_.vocab_size;
    const int total = static_cast<int>(batch.logit_rows.size());
    const float* post_norm = model_.layer(config_.num_layers() - 1).post_ffn_norm;
    for (int begin = 0; begin < total; begin += kLogitRows) {
        const int count = std::min(kLogitRows, total - begin);
        team_.for_each(count, 1, [&](int i) {
            const int row = batch.logit_rows[static_cast<size_t>(begin + i)];
            float* hidden = row_of(hidden_, row, n);
            if (post_norm != nullptr) {
                float* branch = row_of(branch_, row, n);
                kernels_.rms_norm(branch, post_norm, config_.rms_norm_eps, n, branch);
                kernels_.add(hidden, branch, n);
            }
            kernels_.rms_norm(hidden, model_.final_norm(), config_.rms_norm_eps, n, normed_.row(i));
            normed_.seal(kernels_, i);
        });
        float* logits = output.logits != nullptr
                            ? output.logits + static_cast<size_t>(begin) * static_cast<size_t>(vocab)
                            : logits_.data();
        multiply(team_, kernels_, {{model_.head(), logits, vocab}}, normed_.view(), count);
        team_.for_each(count, 1, [&](int i) {
            float* own = logits + static_cast<size_t>(i) * static_cast<size_t>(vocab);
            finish_row(worker, batch, output, begin + i, own);
        });
    }
}

void Forward::finish_row(int worker, const Batch& batch, const BatchOutput& output, int row, float* logits) {
    if (config_.logit_softcap != 0.0f) kernels_.softcap(logits, config_.logit_softcap, config_.vocab_size);
    if (batch.sampling.empty()) return;
    Sampler& sampler = workers_[static_cast<size_t>(worker)].sampler;
    const int token = sampler.draw(logits, batch.sampling[static_cast<size_t>(row)]);
    output.tokens[row] = token;
    if (token < 0) {
        std::atomic_ref(drawn_badly_).store(row);
    } else if (batch.num_logprobs >= 0) {
        const size_t best = static_cast<size_t>(row) * static_cast<size_t>(batch.num_logprobs);
        sampler.log_probabilities(logits, token, output.logprobs + row, batch.num_logprobs, output.top_ids + best,
                                  output.top_logprobs + best);
    }
}

}  // namespace sojourn
