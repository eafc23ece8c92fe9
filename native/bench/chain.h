// Every matrix product of a SmolLM2-135M step, on its shapes and random weights: what a step costs beside attention.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "native/isa/isa.h"
#include "native/tests/packed_matrix.h"

namespace sojourn::bench {

inline double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Waits by spinning: here the barrier must cost nothing, in the core it must also be polite.
class SpinBarrier {
public:
    explicit SpinBarrier(int threads) : threads_(threads) {}
    void wait() {
        const int round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1) == threads_ - 1) {
            arrived_.store(0);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        while (round_.load(std::memory_order_acquire) == round) {
        }
    }

private:
    const int threads_;
    std::atomic<int> arrived_{0}, round_{0};
};

// Runs work(thread) on `threads` threads, all started before any begins, and returns the seconds it took.
template <class Work>
double timed(int threads, Work work) {
    SpinBarrier start(threads);
    double begin = 0;
    const auto body = [&](int thread) {
        start.wait();
        if (thread == 0) begin = now();
        work(thread);
    };
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(body, thread);
    body(0);
    others.clear();
    return now() - begin;
}

class Chain {
public:
    static constexpr int kHidden = 576, kKv = 192, kIntermediate = 1536, kVocab = 49152, kLayers = 30;

    Chain(MatrixKind kind, MatrixKind head_kind, int rows_max)
        : out_(size_t(rows_max) * kIntermediate),
          logits_(kVocab),
          hidden_(rows_max, kHidden, random_),
          intermediate_(rows_max, kIntermediate, random_),
          head_(head_kind, kVocab, kHidden, random_) {
        for (int layer = 0; layer < kLayers; ++layer) layers_.push_back(std::make_unique<Layer>(kind, random_));
        const Kernels& kernels = kernels_for(best_isa());
        kernels.quantise(hidden_.view, {0, rows_max});
        kernels.quantise(intermediate_.view, {0, rows_max});
    }

    size_t layer_bytes() const {
        size_t bytes = 0;
        for (const auto& l : layers_) {
            for (const auto* w : {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down}) bytes += w->bytes();
        }
        return bytes;
    }
    size_t head_bytes() const { return head_.bytes(); }
    static double layer_operations() {
        return 2.0 * kLayers * kHidden * (2.0 * kHidden + 2 * kKv + 3 * kIntermediate);
    }

    double run_layers(const Kernels& kernels, int rows, int threads) {
        SpinBarrier barrier(threads);
        return timed(threads, [&](int thread) {
            for (const auto& layer : layers_) run_layer(kernels, *layer, {0, rows}, thread, threads, barrier);
        });
    }

    double run_head(const Kernels& kernels, int threads) {
        return timed(threads, [&](int thread) {
            const Range blocks = share(head_.matrix, thread, threads);
            kernels.linear(head_.matrix, hidden_.view, {0, 1}, blocks, logits_.data(), kVocab, Epilogue::Store);
        });
    }

private:
    struct Layer {
        Layer(MatrixKind kind, std::mt19937& random)
            : q(kind, kHidden, kHidden, random),
              k(kind, kKv, kHidden, random),
              v(kind, kKv, kHidden, random),
              o(kind, kHidden, kHidden, random),
              gate(kind, kIntermediate, kHidden, random),
              up(kind, kIntermediate, kHidden, random),
              down(kind, kHidden, kIntermediate, random) {}
        test::PackedMatrix q, k, v, o, gate, up, down;
    };

    static Range share(const Matrix& w, int thread, int threads) {
        return {num_blocks(w) * thread / threads, num_blocks(w) * (thread + 1) / threads};
    }

    void run_layer(const Kernels& kernels, const Layer& layer, Range rows, int thread, int threads,
                   SpinBarrier& barrier) {
        const auto product = [&](const test::PackedMatrix& w, const test::ActivationRows& x, float* out) {
            const Range blocks = share(w.matrix, thread, threads);
            kernels.linear(w.matrix, x.view, rows, blocks, out, kIntermediate, Epilogue::Store);
        };
        product(layer.q, hidden_, out_.data());
        product(layer.k, hidden_, out_.data() + kHidden);
        product(layer.v, hidden_, out_.data() + kHidden + kKv);
        barrier.wait();
        product(layer.o, hidden_, out_.data());
        barrier.wait();
        const Range blocks = share(layer.gate.matrix, thread, threads);
        kernels.gated(layer.gate.matrix, layer.up.matrix, hidden_.view, rows, blocks, out_.data(), kIntermediate,
                      Activation::Silu);
        barrier.wait();
        product(layer.down, intermediate_, out_.data());
        barrier.wait();
    }

    std::mt19937 random_{1};
    std::vector<float> out_, logits_;
    test::ActivationRows hidden_, intermediate_;
    test::PackedMatrix head_;
    std::vector<std::unique_ptr<Layer>> layers_;
};

// Bytes per second of reading `lines` in order on `threads` threads: the limit of a step that reads each weight once.
inline double read_bandwidth(const std::vector<uint64_t>& words, int threads) {
    std::atomic<uint64_t> sink{0};
    double best = 1e9;
    for (int repeat = 0; repeat < 7; ++repeat) {
        best = std::min(best, timed(threads, [&](int thread) {
            const size_t begin = words.size() * thread / threads, end = words.size() * (thread + 1) / threads;
            uint64_t sum = 0;
            for (size_t i = begin; i < end; ++i) sum ^= words[i];
            sink += sum;
        }));
    }
    return words.size() * 8 / best;
}

}  // namespace sojourn::bench
