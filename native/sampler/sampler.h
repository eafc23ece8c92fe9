// Draws a token from a row of logits. The specification, written to be read, is backends/reference_sampler.py.
//
//     logits -> logit bias -> repetition -> presence, frequency -> temperature -> top-k -> top-p -> min-p -> draw
//
// The draw is the inverse CDF in token-id order at one uniform number, a pure function of (seed, position). Ties go to
// the lower id. Nothing is sorted unless a filter asks, and then only the tokens near the top.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "native/isa/isa.h"

namespace sojourn {

// How one row is drawn; off: temperature 0 (greedy), top_k 0, top_p 1, min_p 0, penalties 1, 0, 0, no known token.
struct SamplingRow {
    float temperature = 0.0f;
    int top_k = 0;
    float top_p = 1.0f;
    float min_p = 0.0f;
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    uint64_t seed = 0;
    int64_t position = 0;
    std::span<const int32_t> bias_ids;
    std::span<const float> bias_values;
    std::span<const int32_t> history;
    int num_prompt = 0;  // tokens of the history that are prompt
    int known = -1;      // the token, if it is known already: nothing is drawn
};

// Working memory of one worker; holds nothing between rows.
class Sampler {
public:
    Sampler(const Kernels& kernels, int vocab_size);

    // The token, or -1 when the logits have no finite maximum or hold a NaN, or the filters keep nothing.
    int draw(const float* logits, const SamplingRow& row);

    // Log-probabilities of the model's own distribution: of `token`, and the `num_best` best, best first.
    void log_probabilities(const float* logits, int token, float* logprob, int num_best, int32_t* best_ids,
                           float* best_logprobs);

private:
    const float* adjust(const float* logits, const SamplingRow& row);
    void penalise(const SamplingRow& row);
    int draw_from_all(double uniform) const;
    int draw_filtered(const float* logits, const SamplingRow& row, float maximum, double uniform);
    void collect(const float* logits, float maximum, const SamplingRow& row);
    void keep_top_p(const float* logits, const SamplingRow& row, float maximum, double mass_wanted);
    double keep_ranked(const float* logits, const SamplingRow& row);
    double mass(std::span<const int> ids) const;

    const Kernels& kernels_;
    const int vocab_size_;
    std::vector<float> adjusted_;
    std::vector<float> weights_;
    std::vector<double> sums_;
    std::vector<int> counts_;     // by token; zero between rows
    std::vector<int> collected_;  // candidates in id order
    std::vector<int> ranked_;     // what top-k and top-p keep of them, in no order
    std::vector<int> edge_;       // those around the place where top-p ends
    int num_collected_ = 0;
};

}  // namespace sojourn
