// The sampler where a mistake would touch memory or loop: odd sizes, ties, filters that keep one or all, no numbers.
// What it draws is compared with the specification in tests/backends/test_native_sampler.py.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "native/sampler/philox.h"
#include "native/sampler/sampler.h"
#include "native/tests/check.h"

namespace sojourn::test {
namespace {

void test_philox() {
    // numpy.random.Philox(key=0, counter=0).random_raw(4)
    const philox::Block expected = {213000021201967259u, 4455796210202625458u, 2055444239878205049u,
                                    10411612076246414556u};
    check(philox::generate({1, 0, 0, 0}, {0, 0}) == expected, "not Philox4x64-10");
    // numpy.random.Generator(numpy.random.Philox(key=12345, counter=67)).random()
    check(uniform_at(12345, 67) == 0.4705507257391903, "not numpy's double");
    check(uniform_at(1, 2) != uniform_at(1, 3) && uniform_at(1, 2) != uniform_at(2, 2), "draws repeat");
    for (int64_t position = 0; position < 1000; position++) {
        const double u = uniform_at(7, position);
        check(u >= 0.0 && u < 1.0, "draw %g at %lld", u, static_cast<long long>(position));
    }
}

void test_draws(const Kernels& kernels, int vocab, float spread) {
    std::mt19937 random(static_cast<unsigned>(vocab));
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> logits(static_cast<size_t>(vocab));
    for (float& logit : logits) logit = normal(random);
    Sampler sampler(kernels, vocab);
    std::vector<int32_t> best_ids(static_cast<size_t>(vocab));
    std::vector<float> best(static_cast<size_t>(vocab));
    for (const float temperature : {0.0f, 0.01f, 1.0f, 100.0f}) {
        for (const int top_k : {0, 1, 5, vocab, vocab + 1}) {
            for (const float top_p : {1.0f, 0.999999f, 0.5f, 1e-9f}) {
                for (const float min_p : {0.0f, 0.1f, 1.0f}) {
                    SamplingRow row;
                    row.temperature = temperature;
                    row.top_k = top_k;
                    row.top_p = top_p;
                    row.min_p = min_p;
                    row.position = top_k + vocab;
                    const int token = sampler.draw(logits.data(), row);
                    check(token >= 0 && token < vocab, "drew %d of %d", token, vocab);
                }
            }
        }
    }
    SamplingRow known;
    known.temperature = 1.0f;
    known.top_k = 1;
    for (const int token : {0, vocab / 2, vocab - 1}) {
        known.known = token;
        check(sampler.draw(logits.data(), known) == token, "token %d was known", token);
    }
    for (const int count : {0, 1, vocab}) {
        float logprob = 1.0f;
        sampler.log_probabilities(logits.data(), vocab - 1, &logprob, count, best_ids.data(), best.data());
        check(logprob <= 0.0f, "log-probability %g", static_cast<double>(logprob));
        for (int i = 1; i < count; i++) check(best[i] <= best[i - 1], "rank %d is better than rank %d", i, i - 1);
    }
}

void test_not_numbers(const Kernels& kernels) {
    constexpr int kVocab = 77;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        for (int at = 0; at < kVocab; at++) {
            std::vector<float> logits(kVocab, 0.5f);
            logits[static_cast<size_t>(at)] = bad;
            Sampler sampler(kernels, kVocab);
            for (const float temperature : {0.0f, 1.0f}) {
                SamplingRow row;
                row.temperature = temperature;
                check(sampler.draw(logits.data(), row) == -1, "%g at %d went unseen", static_cast<double>(bad), at);
            }
        }
    }
    const std::vector<float> nothing(kVocab, -std::numeric_limits<float>::infinity());
    Sampler sampler(kernels, kVocab);
    check(sampler.draw(nothing.data(), SamplingRow{}) == -1, "drew from nothing");
}

// Parameters at the ends of what a float holds: the best token or none, and no memory that is not the sampler's.
void test_ends_of_the_range(const Kernels& kernels) {
    constexpr int kVocab = 77;
    constexpr int kBest = 40;
    std::vector<float> logits(kVocab, 0.5f);
    logits[kBest] = 0.75f;
    logits[3] = -std::numeric_limits<float>::infinity();
    Sampler sampler(kernels, kVocab);
    for (const int top_k : {0, 5}) {
        for (const float top_p : {1.0f, 0.5f, 1e-45f}) {
            SamplingRow row;
            row.top_k = top_k;
            row.top_p = top_p;
            row.temperature = 1e-38f;  // the inverse is finite, but not 32 times it
            check(sampler.draw(logits.data(), row) == kBest, "not the best at top_p %g", static_cast<double>(top_p));
            row.temperature = 3e38f;
            const int token = sampler.draw(logits.data(), row);
            check(token >= 0 && token < kVocab, "drew %d when all are as likely", token);
        }
    }
    SamplingRow row;
    row.temperature = 1e-39f;
    row.top_k = kBest;
    check(sampler.draw(logits.data(), row) == -1, "drew from weights that are no numbers");
    row.temperature = 1.0f;
    row.min_p = 2.0f;
    check(sampler.draw(logits.data(), row) == -1, "drew from what no filter keeps");
}

}  // namespace
}  // namespace sojourn::test

int main() {
    using namespace sojourn;
    test::test_philox();
    for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512}) {
        if (!is_supported(isa)) continue;
        const Kernels& kernels = kernels_for(isa);
        for (const int vocab : {1, 15, 16, 17, 1023, 1025, 5000}) {
            for (const float spread : {0.0f, 1.0f, 30.0f}) test::test_draws(kernels, vocab, spread);
        }
        test::test_not_numbers(kernels);
        test::test_ends_of_the_range(kernels);
    }
    return test::report("test_sampler");
}
