#include "native/sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "native/sampler/philox.h"
#include "native/sampler/sums.h"

namespace sojourn {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Buckets of logits for top-p, by distance from the best; the last one holds all that is further away.
constexpr size_t kBuckets = 512;
constexpr float kBucketsPerNat = 32.0f;

// Ranks tokens: higher logit first, then lower id.
struct BetterLogit {
    const float* logits;
    bool operator()(int a, int b) const { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); }
};

}  // namespace

Sampler::Sampler(const Kernels& kernels, int vocab_size)
    : kernels_(kernels),
      vocab_size_(vocab_size),
      weights_(static_cast<size_t>(vocab_size)),
      sums_(static_cast<size_t>(vocab_size + kSumBlock - 1) / kSumBlock),
      collected_(static_cast<size_t>(vocab_size)) {}

int Sampler::draw(const float* logits, const SamplingRow& row) {
    // What the model computed is checked before a bias can hide it.
    float maximum = kernels_.maximum(logits, vocab_size_);
    if (std::isnan(maximum)) return -1;
    if (row.known >= 0) return std::isfinite(maximum) ? row.known : -1;
    if (!row.bias_ids.empty() || !row.history.empty()) {
        logits = adjust(logits, row);
        maximum = kernels_.maximum(logits, vocab_size_);
    }
    if (!std::isfinite(maximum)) return -1;
    if (row.temperature == 0.0f) return kernels_.first_at_least(logits, vocab_size_, maximum);
    kernels_.exponentials(logits, vocab_size_, maximum, 1.0f / row.temperature, weights_.data(), sums_.data());
    const double uniform = uniform_at(row.seed, row.position);
    const bool is_filtered = row.top_k > 0 || row.top_p < 1.0f || row.min_p > 0.0f;
    return is_filtered ? draw_filtered(logits, row, maximum, uniform) : draw_from_all(uniform);
}

const float* Sampler::adjust(const float* logits, const SamplingRow& row) {
    adjusted_.assign(logits, logits + vocab_size_);
    for (size_t i = 0; i < row.bias_ids.size(); i++) {
        adjusted_[static_cast<size_t>(row.bias_ids[i])] += row.bias_values[i];
    }
    if (!row.history.empty()) penalise(row);
    return adjusted_.data();
}

void Sampler::penalise(const SamplingRow& row) {
    counts_.resize(static_cast<size_t>(vocab_size_));
    for (const int32_t token : row.history) {
        if (counts_[static_cast<size_t>(token)]++ > 0) continue;
        float& logit = adjusted_[static_cast<size_t>(token)];
        logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    for (const int32_t token : row.history) counts_[static_cast<size_t>(token)] = 0;

    const auto output = row.history.subspan(static_cast<size_t>(row.num_prompt));
    for (const int32_t token : output) counts_[static_cast<size_t>(token)]++;
    for (const int32_t token : output) {
        int& count = counts_[static_cast<size_t>(token)];
        if (count == 0) continue;
        const float penalty = row.presence_penalty + row.frequency_penalty * static_cast<float>(count);
        adjusted_[static_cast<size_t>(token)] -= penalty;
        count = 0;
    }
}

int Sampler::draw_from_all(double uniform) const {
    const double target = uniform * std::accumulate(sums_.begin(), sums_.end(), 0.0);
    double before = 0.0;
    size_t block = 0;
    while (block + 1 < sums_.size() && before + sums_[block] <= target) before += sums_[block++];
    // Rounding may leave the target a hair past the block's last token: then that is the one.
    int last = -1;
    const int begin = static_cast<int>(block) * kSumBlock;
    for (int i = begin; i < vocab_size_; i++) {
        const float weight = weights_[static_cast<size_t>(i)];
        if (weight == 0.0f) continue;
        last = i;
        before += weight;
        if (before > target) return i;
    }
    if (last >= 0) return last;
    for (last = begin - 1; weights_[static_cast<size_t>(last)] == 0.0f;) last--;
    return last;
}

// Candidates: all tokens that a filter can keep, and few others, in id order.
void Sampler::collect(const float* logits, float maximum, const SamplingRow& row) {
    const double total = std::accumulate(sums_.begin(), sums_.end(), 0.0);
    const bool has_rank = row.top_k > 0;
    const bool has_mass = row.top_p < 1.0f;
    for (float depth = 4.0f;; depth *= 2.0f) {
        const float bound = depth <= 64.0f ? maximum - depth * row.temperature : -kInfinity;
        num_collected_ = kernels_.collect_at_least(logits, vocab_size_, bound, collected_.data());
        const std::span<const int> ids(collected_.data(), static_cast<size_t>(num_collected_));
        const bool enough_by_rank = has_rank && num_collected_ >= row.top_k;
        // The mass that top-p divides is that of the top k, where there is a k.
        const bool enough_by_mass = has_mass && !has_rank && mass(ids) >= row.top_p * total;
        const bool enough_by_weight = !(has_mass && has_rank) && row.min_p >= std::exp(1.0f - depth);
        if (enough_by_rank || enough_by_mass || enough_by_weight || depth > 64.0f) return;
    }
}

double Sampler::mass(std::span<const int> ids) const {
    double sum = 0.0;
    for (const int id : ids) sum += weights_[static_cast<size_t>(id)];
    return sum;
}

// Leaves in ranked_ the best tokens up to the one that reaches the wanted mass. Buckets of nearly equal logits say
// roughly where that is, and only the bucket in question is sorted.
void Sampler::keep_top_p(const float* logits, const SamplingRow& row, float maximum, double mass_wanted) {
    const float scale = kBucketsPerNat / row.temperature;
    // The last bucket takes a NaN too, which an infinite scale makes of the best logit.
    const auto bucket_of = [&](int id) {
        const float bucket = (maximum - logits[id]) * scale;
        return bucket < kBuckets - 1.0f ? static_cast<size_t>(bucket) : kBuckets - 1;
    };
    double masses[kBuckets] = {};
    for (const int id : ranked_) masses[bucket_of(id)] += static_cast<double>(weights_[static_cast<size_t>(id)]);
    size_t last = 0;
    double before = 0.0;
    while (last + 1 < kBuckets && before + masses[last] < mass_wanted) before += masses[last++];

    edge_.clear();
    std::copy_if(ranked_.begin(), ranked_.end(), std::back_inserter(edge_),
                 [&](int id) { return bucket_of(id) == last; });
    std::erase_if(ranked_, [&](int id) { return bucket_of(id) >= last; });
    std::sort(edge_.begin(), edge_.end(), BetterLogit{logits});
    for (const int id : edge_) {
        if (before >= mass_wanted && !ranked_.empty()) break;
        before += static_cast<double>(weights_[static_cast<size_t>(id)]);
        ranked_.push_back(id);
    }
}

// Reduces collected_ to what all filters keep, still in id order; returns its mass.
double Sampler::keep_ranked(const float* logits, const SamplingRow& row) {
    const int worst = *std::max_element(ranked_.begin(), ranked_.end(), BetterLogit{logits});
    const float bound = logits[worst];
    double kept_mass = 0.0;
    int kept = 0;
    for (int i = 0; i < num_collected_; i++) {
        const int id = collected_[static_cast<size_t>(i)];
        const float weight = weights_[static_cast<size_t>(id)];
        const bool is_ranked = logits[id] > bound || (logits[id] == bound && id <= worst);
        const bool is_kept = is_ranked && weight >= row.min_p && weight > 0.0f;
        collected_[static_cast<size_t>(kept)] = id;
        kept += is_kept;
        kept_mass += is_kept ? static_cast<double>(weight) : 0.0;
    }
    num_collected_ = kept;
    return kept_mass;
}

int Sampler::draw_filtered(const float* logits, const SamplingRow& row, float maximum, double uniform) {
    collect(logits, maximum, row);
    ranked_.assign(collected_.begin(), collected_.begin() + num_collected_);
    double total = std::accumulate(sums_.begin(), sums_.end(), 0.0);
    if (row.top_k > 0) {
        if (row.top_k < num_collected_) {
            std::nth_element(ranked_.begin(), ranked_.begin() + row.top_k, ranked_.end(), BetterLogit{logits});
            ranked_.resize(static_cast<size_t>(row.top_k));
        }
        total = mass(ranked_);
    }
    if (row.top_p < 1.0f) keep_top_p(logits, row, maximum, row.top_p * total);

    const double target = uniform * keep_ranked(logits, row);
    // Only parameters that the door refuses keep nothing.
    if (num_collected_ == 0) return -1;
    double before = 0.0;
    for (int i = 0; i + 1 < num_collected_; i++) {
        const int id = collected_[static_cast<size_t>(i)];
        before += static_cast<double>(weights_[static_cast<size_t>(id)]);
        if (before > target) return id;
    }
    return collected_[static_cast<size_t>(num_collected_ - 1)];
}

void Sampler::log_probabilities(const float* logits, int token, float* logprob, int num_best, int32_t* best_ids,
                                float* best_logprobs) {
    const float maximum = kernels_.maximum(logits, vocab_size_);
    kernels_.exponentials(logits, vocab_size_, maximum, 1.0f, weights_.data(), sums_.data());
    const double log_sum = std::log(std::accumulate(sums_.begin(), sums_.end(), 0.0));
    const auto of = [&](int id) { return static_cast<float>(static_cast<double>(logits[id]) - maximum - log_sum); };
    *logprob = of(token);
    if (num_best == 0) return;

    SamplingRow by_rank;
    by_rank.temperature = 1.0f;
    by_rank.top_k = num_best;
    collect(logits, maximum, by_rank);
    const auto begin = collected_.begin();
    std::partial_sort(begin, begin + num_best, begin + num_collected_, BetterLogit{logits});
    for (int i = 0; i < num_best; i++) {
        best_ids[i] = collected_[static_cast<size_t>(i)];
        best_logprobs[i] = of(best_ids[i]);
    }
}

}  // namespace sojourn
