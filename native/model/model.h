// The model as the core reads it: numbers of the configuration, and pointers to packed weights that others own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "native/linear/linear.h"

namespace sojourn {

// Rotary embedding of one kind of layer: head_dim / 2 inverse frequencies, and what multiplies cos and sin.
struct Rope {
    std::vector<float> inv_freq;
    float attention_factor = 1.0f;
};

struct ModelConfig {
    int vocab_size = 0;
    int hidden_size = 0;
    int intermediate_size = 0;
    int context_length = 0;
    float rms_norm_eps = 0.0f;
    Activation activation = Activation::Silu;
    float embedding_scale = 1.0f;
    float logit_softcap = 0.0f;
    bool tied_embeddings = true;
    bool post_norms = false;

    int num_heads = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    float query_scale = 1.0f;
    bool qk_norm = false;
    bool qkv_bias = false;
    float attention_softcap = 0.0f;
    int sliding_window = 0;
    std::vector<bool> layer_slides;  // one per layer
    Rope rope;
    Rope rope_sliding;  // of sliding layers; as `rope` where they do not differ

    int num_layers() const { return static_cast<int>(layer_slides.size()); }
    int query_size() const { return num_heads * head_dim; }
    int kv_size() const { return num_kv_heads * head_dim; }
    int group() const { return num_heads / num_kv_heads; }
};

struct LayerWeights {
    Matrix q, k, v, o, gate, up, down;
    const float* attn_norm = nullptr;
    const float* ffn_norm = nullptr;
    const float* q_norm = nullptr;
    const float* k_norm = nullptr;
    const float* post_attn_norm = nullptr;
    const float* post_ffn_norm = nullptr;
    const float* q_bias = nullptr;
    const float* k_bias = nullptr;
    const float* v_bias = nullptr;
};

class Model {
public:
    // Throws std::invalid_argument naming the number that makes no sense.
    explicit Model(ModelConfig config);

    // Names as in src/sojourn/models/packed.py. Throws std::invalid_argument on a name or shape that does not belong.
    void set_matrix(const std::string& name, const Matrix& matrix);
    void set_vector(const std::string& name, const float* data, size_t size);

    // Throws std::invalid_argument naming a weight that is missing.
    void check_complete() const;

    const ModelConfig& config() const { return config_; }
    const LayerWeights& layer(int index) const { return layers_[static_cast<size_t>(index)]; }
    const Matrix& embed() const { return embed_; }
    const Matrix& head() const { return config_.tied_embeddings ? embed_ : head_; }
    const float* final_norm() const { return final_norm_; }

private:
    // A place for a weight, and what must fit into it.
    struct MatrixSlot {
        Matrix* matrix;
        int rows;
        int cols;
    };
    struct VectorSlot {
        const float** vector;
        int size;
    };
    MatrixSlot matrix_slot(const std::string& name);
    VectorSlot vector_slot(const std::string& name);

    ModelConfig config_;
    std::vector<LayerWeights> layers_;
    Matrix embed_;
    Matrix head_;
    const float* final_norm_ = nullptr;
};

}  // namespace sojourn
