// Whole steps of a tiny model, for the sanitizers: every page size, ragged batches, windows, splits, and wrong batches.
// Right answers and bits are the business of tests/backends; here chunks and threads must agree once more.
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "native/step/core.h"
#include "native/tests/check.h"
#include "native/tests/packed_matrix.h"

namespace sojourn::test {
namespace {

constexpr int kVocab = 50;
constexpr int kLength = 330;

// Owns the weights that a model points to.
class Weights {
public:
    explicit Weights(MatrixKind kind) : kind_(kind), ones_(256, 1.0f) {}

    // The same weights every time.
    std::unique_ptr<const Model> model() {
        random_.seed(5);
        ModelConfig config;
        config.vocab_size = kVocab;
        config.hidden_size = 64;
        config.intermediate_size = 96;
        config.context_length = kLength;
        config.rms_norm_eps = 1e-6f;
        config.activation = Activation::GeluTanh;
        config.logit_softcap = 20.0f;
        config.post_norms = true;
        config.num_heads = 4;
        config.num_kv_heads = 2;
        config.head_dim = 48;
        config.query_scale = 0.15f;
        config.qk_norm = true;
        config.qkv_bias = true;
        config.sliding_window = 37;
        config.layer_slides = {true, false};
        config.rope.inv_freq.assign(24, 0.1f);
        config.rope_sliding.inv_freq.assign(24, 0.5f);
        auto model = std::make_unique<Model>(config);
        add(*model, "embed", kVocab, 64);
        for (const std::string layer : {"layers.0.", "layers.1."}) {
            add(*model, layer + "q", 192, 64);
            add(*model, layer + "k", 96, 64);
            add(*model, layer + "v", 96, 64);
            add(*model, layer + "o", 64, 192);
            add(*model, layer + "gate", 96, 64);
            add(*model, layer + "up", 96, 64);
            add(*model, layer + "down", 64, 96);
            for (const char* norm : {"attn_norm", "ffn_norm", "post_attn_norm", "post_ffn_norm"}) {
                model->set_vector(layer + norm, ones_.data(), 64);
            }
            for (const char* norm : {"q_norm", "k_norm"}) model->set_vector(layer + norm, ones_.data(), 48);
            model->set_vector(layer + "q_bias", ones_.data(), 192);
            for (const char* bias : {"k_bias", "v_bias"}) model->set_vector(layer + bias, ones_.data(), 96);
        }
        model->set_vector("final_norm", ones_.data(), 64);
        return model;
    }

private:
    void add(Model& model, const std::string& name, int rows, int cols) {
        matrices_.push_back(std::make_unique<PackedMatrix>(kind_, rows, cols, random_));
        model.set_matrix(name, matrices_.back()->matrix);
    }

    MatrixKind kind_;
    std::mt19937 random_;
    std::vector<float> ones_;
    std::vector<std::unique_ptr<PackedMatrix>> matrices_;
};

// Logits of a sequence of kLength tokens in chunks, each step carrying a row of a second sequence too.
std::vector<float> run(Core& core, int chunk, int page_size) {
    const int pages = (kLength + page_size - 1) / page_size;
    std::vector<TableEdit> edits;
    for (int sequence = 0; sequence < 2; sequence++) {
        for (int pool = 0; pool < kPools; pool++) {
            for (int i = 0; i < pages; i++) edits.push_back({sequence, pool, i, 1 + 2 * i + sequence});
        }
    }
    std::vector<float> logits(static_cast<size_t>(kLength) * kVocab);
    int other = 0;
    for (int start = 0; start < kLength; start += chunk) {
        const int count = std::min(chunk, kLength - start);
        std::vector<int32_t> tokens, wanted;
        tokens.push_back(other % kVocab);
        for (int i = 0; i < count; i++) {
            tokens.push_back((start + i) * 7 % kVocab);
            wanted.push_back(1 + i);
        }
        const int32_t sequences[] = {1, 0}, starts[] = {other, start}, lengths[] = {1, count};
        std::vector<SamplingRow> sampling(static_cast<size_t>(count));
        for (auto& row : sampling) row.temperature = 1.0f;
        std::vector<int32_t> drawn(static_cast<size_t>(count));
        const Batch batch{tokens, sequences, starts, lengths, edits, wanted, sampling, -1};
        core.step(batch, {.tokens = drawn.data(), .logits = logits.data() + static_cast<size_t>(start) * kVocab});
        for (const int32_t token : drawn) check(token >= 0 && token < kVocab, "drew %d", token);
        edits.clear();
        other++;
    }
    return logits;
}

CoreOptions options_of(int page_size, int threads, KvType type, Isa isa) {
    const int pages = 1 + 2 * ((kLength + page_size - 1) / page_size);
    CoreOptions options;
    options.page_size = page_size;
    options.num_pages[kFull] = options.num_pages[kSliding] = pages;
    options.kv_type = type;
    options.threads = threads;
    options.sequences = 2;
    options.isa = isa;
    return options;
}

void test_steps(MatrixKind kind, KvType type, Isa isa) {
    Weights weights(kind);
    Core whole(weights.model(), options_of(16, 1, type, isa));
    const auto expected = run(whole, kLength, 16);
    for (const int page_size : {1, 8, 64, 256}) {
        Core core(weights.model(), options_of(page_size, 1 + page_size % 3, type, isa));
        const auto logits = run(core, page_size == 8 ? 13 : 150, page_size);
        check(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)) == 0,
              "pages of %d show (kind %d)", page_size, static_cast<int>(kind));
    }
}

template <class Change>
void check_refused(Core& core, const char* what, Change change) {
    int32_t tokens[] = {1}, sequences[] = {0}, starts[] = {0}, lengths[] = {1}, rows[] = {0};
    TableEdit edits[] = {{0, 0, 0, 1}, {0, 1, 0, 1}};
    change(tokens[0], sequences[0], starts[0], lengths[0], rows[0], edits[0]);
    float logits[kVocab];
    try {
        core.step({tokens, sequences, starts, lengths, edits, rows, {}, -1}, {.logits = logits});
        check(false, "%s was let in", what);
    } catch (const std::invalid_argument&) {
    }
}

void test_door() {
    Weights weights(MatrixKind::F32);
    Core core(weights.model(), options_of(16, 1, KvType::F16, Isa::Portable));
    using I = int32_t&;
    check_refused(core, "a token", [](I token, I, I, I, I, TableEdit&) { token = kVocab; });
    check_refused(core, "a sequence", [](I, I sequence, I, I, I, TableEdit&) { sequence = 2; });
    check_refused(core, "a start", [](I, I, I start, I, I, TableEdit&) { start = kLength; });
    check_refused(core, "a length", [](I, I, I, I length, I, TableEdit&) { length = 2; });
    check_refused(core, "a row", [](I, I, I, I, I row, TableEdit&) { row = 1; });
    check_refused(core, "a page", [](I, I, I, I, I, TableEdit& edit) { edit.page = 1000; });
    check_refused(core, "the null page", [](I, I, I, I, I, TableEdit& edit) { edit.page = 0; });
}

// Random edits against tables written plainly.
void test_tables() {
    std::mt19937 random(3);
    PageTables tables(2);
    std::vector<int32_t> expected[2][kPools];
    for (int round = 0; round < 5000; round++) {
        const int sequence = random() % 2, pool = random() % kPools;
        auto& plain = expected[sequence][pool];
        const int index = static_cast<int>(random() % (plain.size() + 2));
        const int page = static_cast<int>(random() % 4);
        tables.set(sequence, pool, index, page);
        plain.resize(static_cast<size_t>(index), 0);
        plain.push_back(page);
        check(tables.pages(sequence, pool) == plain, "wrong pages after round %d", round);
        int live_from = index + 1;
        while (live_from > 0 && plain[static_cast<size_t>(live_from) - 1] != 0) live_from--;
        check(tables.live_from(sequence, pool) == live_from, "live from %d, not %d, after round %d",
              tables.live_from(sequence, pool), live_from, round);
    }
}

}  // namespace
}  // namespace sojourn::test

int main() {
    using namespace sojourn;
    for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512}) {
        if (!is_supported(isa)) continue;
        test::test_steps(MatrixKind::F32, KvType::F32, isa);
        test::test_steps(MatrixKind::Q4M, KvType::F16, isa);
    }
    test::test_steps(MatrixKind::Q8, KvType::F16, best_isa());
    test::test_door();
    test::test_tables();
    return test::report("test_core");
}
