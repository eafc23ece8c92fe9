// One forward step: embedding, layers, head, sampling. Owns the working memory, borrows weights, KV and tables.
//
// All workers run `work` together; each method called from it is one phase or a few, dealt out by the team. A phase is
// over when its items are done, wherever the workers are. Every phase computes each row by itself, so no row's result
// depends on the others.
#pragma once
#include <vector>

#include "native/attention/plan.h"
#include "native/kv/store.h"
#include "native/kv/tables.h"
#include "native/model/model.h"
#include "native/sampler/sampler.h"
#include "native/step/activation_rows.h"
#include "native/step/batch.h"
#include "native/threads/team.h"

namespace sojourn {

// Where a layer keeps its KV.
struct LayerPlace {
    int pool = 0;
    int index = 0;  // among the layers of the pool
};

class Forward {
public:
    Forward(const Model& model, const Kernels& kernels, Team& team, const std::vector<LayerPlace>& places,
            const KvStore* stores, const PageTables& tables);

    // The batch has been checked and its edits are applied. Throws std::runtime_error if keys, values or logits to
    // sample are not finite numbers; by then KV has been written, as always.
    void run(const Batch& batch, const BatchOutput& output);

private:
    // Working memory of one worker.
    struct Worker {
        Buffer<float> queries;
        Buffer<float> running;
        Buffer<float> current;
        Buffer<std::byte> gathered;
        Sampler sampler;
    };

    void prepare(const Batch& batch);
    void plan_rows(const Batch& batch);
    void work(int worker, const Batch& batch, const BatchOutput& output);

    void embed(const Batch& batch);
    void fill_rotations(int row);
    void normalise(const float* weight, const float* post_norm);
    void project(const LayerWeights& layer);
    void place_keys_and_values(const Batch& batch, int index);
    void place_row(const Batch& batch, int index, int row);
    void attend(const Batch& batch, int index, int worker);
    AttentionUnit unit_of(const Batch& batch, const PlannedUnit& planned, int index) const;
    void gather_attention(int index, int worker);
    void feed_forward(const LayerWeights& layer);
    void add_product(const Matrix& w, const ActivationRows& x);
    void head(int worker, const Batch& batch, const BatchOutput& output);
    void finish_row(int worker, const Batch& batch, const BatchOutput& output, int row, float* logits);

    const Model& model_;
    const ModelConfig& config_;
    const Kernels& kernels_;
    Team& team_;
    const std::vector<LayerPlace>& places_;
    const KvStore* stores_;
    const PageTables& tables_;
    std::vector<Worker> workers_;

    int rows_ = 0;
    std::vector<int> row_sequence_;  // index in the batch
    std::vector<int> row_position_;
    AttentionPlan plans_[kPools];
    int drawn_badly_ = -1;   // a logit row whose logits are not numbers
    int stored_badly_ = -1;  // a row whose keys or values are not finite in some layer

    Buffer<float> hidden_;      // [rows, hidden]
    Buffer<float> branch_;      // [rows, hidden], what post norms apply to
    Buffer<float> query_;       // [rows, heads * head_dim]
    Buffer<float> key_;         // [rows, kv heads * head_dim]
    Buffer<float> value_;
    Buffer<float> rotations_;   // [rows, pool, cos | sin]
    Buffer<float> partials_;
    Buffer<float> logits_;      // of a few rows, where the caller does not want them
    ActivationRows normed_;     // what q, k, v, gate, up and the head read
    ActivationRows attended_;   // what o reads
    ActivationRows inner_;      // what down reads
};

}  // namespace sojourn
