#include "native/model/model.h"

#include <charconv>
#include <map>
#include <stdexcept>
#include <utility>

namespace sojourn {

namespace {

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

// Splits "layers.3.q" into 3 and "q"; -1 and the whole name for what belongs to no layer.
std::pair<int, std::string> split_name(const std::string& name) {
    const std::string prefix = "layers.";
    if (name.rfind(prefix, 0) != 0) return {-1, name};
    int layer = -1;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + prefix.size(), end, layer);
    require(parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '.', name + ": not a name of a weight");
    return {layer, std::string(parsed.ptr + 1, end)};
}

void check_rope(const Rope& rope, int head_dim, const std::string& name) {
    require(static_cast<int>(rope.inv_freq.size()) * 2 == head_dim, name + ": inv_freq must have head_dim / 2 entries");
}

}  // namespace

Model::Model(ModelConfig config) : config_(std::move(config)), layers_(config_.layer_slides.size()) {
    const ModelConfig& c = config_;
    require(c.vocab_size > 0 && c.hidden_size > 0 && c.intermediate_size > 0, "sizes must be positive");
    require(c.num_layers() > 0, "no layers");
    require(c.context_length > 0, "context_length must be positive");
    require(c.head_dim > 0 && c.head_dim % 16 == 0, "head_dim must be a multiple of 16");
    require(c.num_kv_heads > 0 && c.num_heads > 0, "numbers of heads must be positive");
    require(c.num_heads % c.num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads");
    check_rope(c.rope, c.head_dim, "rope");
    check_rope(c.rope_sliding, c.head_dim, "rope_sliding");
    for (const bool slides : c.layer_slides) {
        require(!slides || c.sliding_window > 0, "a layer slides but sliding_window is not positive");
    }
}

Model::MatrixSlot Model::matrix_slot(const std::string& name) {
    const ModelConfig& c = config_;
    const auto [index, part] = split_name(name);
    if (index < 0) {
        if (part == "embed") return {&embed_, c.vocab_size, c.hidden_size};
        if (part == "head" && !c.tied_embeddings) return {&head_, c.vocab_size, c.hidden_size};
    } else if (index < c.num_layers()) {
        LayerWeights& layer = layers_[static_cast<size_t>(index)];
        const std::map<std::string, MatrixSlot> slots = {
            {"q", {&layer.q, c.query_size(), c.hidden_size}},
            {"k", {&layer.k, c.kv_size(), c.hidden_size}},
            {"v", {&layer.v, c.kv_size(), c.hidden_size}},
            {"o", {&layer.o, c.hidden_size, c.query_size()}},
            {"gate", {&layer.gate, c.intermediate_size, c.hidden_size}},
            {"up", {&layer.up, c.intermediate_size, c.hidden_size}},
            {"down", {&layer.down, c.hidden_size, c.intermediate_size}},
        };
        const auto found = slots.find(part);
        if (found != slots.end()) return found->second;
    }
    throw std::invalid_argument(name + ": the model has no such matrix");
}

Model::VectorSlot Model::vector_slot(const std::string& name) {
    const ModelConfig& c = config_;
    const auto [index, part] = split_name(name);
    if (index < 0) {
        if (part == "final_norm") return {&final_norm_, c.hidden_size};
    } else if (index < c.num_layers()) {
        LayerWeights& layer = layers_[static_cast<size_t>(index)];
        const std::map<std::string, VectorSlot> slots = {
            {"attn_norm", {&layer.attn_norm, c.hidden_size}},
            {"ffn_norm", {&layer.ffn_norm, c.hidden_size}},
            {"q_norm", {&layer.q_norm, c.head_dim}},
            {"k_norm", {&layer.k_norm, c.head_dim}},
            {"post_attn_norm", {&layer.post_attn_norm, c.hidden_size}},
            {"post_ffn_norm", {&layer.post_ffn_norm, c.hidden_size}},
            {"q_bias", {&layer.q_bias, c.query_size()}},
            {"k_bias", {&layer.k_bias, c.kv_size()}},
            {"v_bias", {&layer.v_bias, c.kv_size()}},
        };
        const auto found = slots.find(part);
        if (found != slots.end()) return found->second;
    }
    throw std::invalid_argument(name + ": the model has no such vector");
}

void Model::set_matrix(const std::string& name, const Matrix& matrix) {
    const MatrixSlot slot = matrix_slot(name);
    require(matrix.rows == slot.rows && matrix.cols == slot.cols,
            name + ": is " + std::to_string(matrix.rows) + " x " + std::to_string(matrix.cols) + ", must be " +
                std::to_string(slot.rows) + " x " + std::to_string(slot.cols));
    require(matrix.kind == MatrixKind::F32 || matrix.cols % kGroup == 0, name + ": columns must be a multiple of 32");
    *slot.matrix = matrix;
}

void Model::set_vector(const std::string& name, const float* data, size_t size) {
    const VectorSlot slot = vector_slot(name);
    require(static_cast<int>(size) == slot.size,
            name + ": has " + std::to_string(size) + " entries, must have " + std::to_string(slot.size));
    *slot.vector = data;
}

void Model::check_complete() const {
    require(embed_.data != nullptr, "embed: missing");
    require(config_.tied_embeddings || head_.data != nullptr, "head: missing");
    require(final_norm_ != nullptr, "final_norm: missing");
    for (int i = 0; i < config_.num_layers(); i++) {
        const LayerWeights& layer = layers_[static_cast<size_t>(i)];
        const std::string prefix = "layers." + std::to_string(i) + ".";
        const auto need = [&](const void* data, const char* name) { require(data, prefix + name + ": missing"); };
        need(layer.q.data, "q");
        need(layer.k.data, "k");
        need(layer.v.data, "v");
        need(layer.o.data, "o");
        need(layer.gate.data, "gate");
        need(layer.up.data, "up");
        need(layer.down.data, "down");
        require(layer.gate.kind == layer.up.kind, prefix + "up: must be stored as gate is");
        need(layer.attn_norm, "attn_norm");
        need(layer.ffn_norm, "ffn_norm");
        if (config_.qk_norm) need(layer.q_norm, "q_norm");
        if (config_.qk_norm) need(layer.k_norm, "k_norm");
        if (config_.post_norms) need(layer.post_attn_norm, "post_attn_norm");
        if (config_.post_norms) need(layer.post_ffn_norm, "post_ffn_norm");
        if (config_.qkv_bias) need(layer.q_bias, "q_bias");
        if (config_.qkv_bias) need(layer.k_bias, "k_bias");
        if (config_.qkv_bias) need(layer.v_bias, "v_bias");
    }
}

}  // namespace sojourn
