// The kernel: R query rows against one span of K and V, R known at compile time so that everything stays in registers.
//
// Per row the order of operations depends on absolute positions only: a score sums over head_dim in ascending order,
// maxima are exact, the sum of exponentials runs lane by lane over ascending blocks, and o over ascending positions.
// How many rows or blocks share the registers is invisible in the result. A position that a row does not see has
// weight exactly 0, and adding 0 times a finite value changes nothing: K and V are stored finite (see store_kv).
#pragma once
#include "native/attention/blocks.h"
#include "native/simd/lanes.h"
#include "native/simd/math.h"

namespace sojourn {

template <class L>
struct Attention {
    using Floats = typename L::Floats;

    // Stands for minus infinity, without its arithmetic.
    static constexpr float kMasked = -1e30f;

    // Positions a row sees, relative to the start of the span; may be empty or reach outside.
    struct Visible {
        int begin;
        int end;
    };

    static Floats load_element(const float* p) { return L::load(p); }
    static Floats load_element(const uint16_t* p) { return L::load_halfs(p); }

    // Exactly 1 at the maximum, and exactly 0 for what is masked (our exp is 0 below -87).
    static Floats weight(Floats x, Floats maximum) { return exp<L>(L::sub(x, maximum)); }

    static Floats capped(Floats score, float softcap) {
        const Floats cap = L::broadcast(softcap);
        return L::mul(cap, tanh<L>(L::div(score, cap)));
    }

    // Scores of R rows against B blocks. `queries` is [head_dim][R].
    template <int R, int B, class E>
    static void score(const float* queries, const E* const* keys, int head_dim, float softcap, const Visible* visible,
                      int position, float (*scores)[kSpan], Floats* maxima) {
        Floats sums[B][R];
#pragma GCC unroll 16
        for (int b = 0; b < B; b++) {
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) sums[b][r] = L::zero();
        }
        for (int d = 0; d < head_dim; d++) {
            Floats key[B];
#pragma GCC unroll 16
            for (int b = 0; b < B; b++) key[b] = load_element(keys[b] + d * kBlock);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                const Floats query = L::broadcast(queries[d * R + r]);
#pragma GCC unroll 16
                for (int b = 0; b < B; b++) sums[b][r] = L::fma(query, key[b], sums[b][r]);
            }
        }
#pragma GCC unroll 16
        for (int b = 0; b < B; b++) {
            const int start = position + b * kBlock;
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                if (softcap != 0.0f) sums[b][r] = capped(sums[b][r], softcap);
                const LaneMask seen = static_cast<LaneMask>(first_lanes(visible[r].end - start) &
                                                            ~first_lanes(visible[r].begin - start));
                const Floats score = L::select(seen, sums[b][r], L::broadcast(kMasked));
                maxima[r] = L::max(maxima[r], score);
                L::store(&scores[r][start], score);
            }
        }
    }

    // o[r] for C x 16 columns from `column` on: sum over positions of weight times value.
    template <int R, int C, class E>
    static void weigh(const SpanBlocks<L, E>& blocks, const float (*weights)[kSpan], int head_dim, int column,
                      float* partials) {
        Floats sums[R][C];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
            for (int c = 0; c < C; c++) sums[r][c] = L::zero();
        }
        for (int b = 0; b < blocks.count; b++) {
            const E* values = blocks.values[b] + column;
            const int start = (blocks.first + b) * kBlock;
            for (int i = 0; i < kBlock; i++) {
                Floats value[C];
#pragma GCC unroll 16
                for (int c = 0; c < C; c++) value[c] = load_element(values + i * head_dim + c * kLanes);
#pragma GCC unroll 16
                for (int r = 0; r < R; r++) {
                    const Floats weight = L::broadcast(weights[r][start + i]);
#pragma GCC unroll 16
                    for (int c = 0; c < C; c++) sums[r][c] = L::fma(weight, value[c], sums[r][c]);
                }
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
#pragma GCC unroll 16
            for (int c = 0; c < C; c++) {
                L::store(partials + r * partial_stride(head_dim) + column + c * kLanes, sums[r][c]);
            }
        }
    }

    // Partials of R rows over the blocks of one span. `Sums` is how many sums the machine's registers can carry.
    template <int R, int Sums, class E>
    static void span(const float* queries, const SpanBlocks<L, E>& blocks, const Visible* visible, int head_dim,
                     float softcap, float* partials) {
        constexpr int kWide = R * 4 <= Sums ? 4 : R * 2 <= Sums ? 2 : 1;
        alignas(64) float scores[R][kSpan];
        Floats maxima[R];
        for (int r = 0; r < R; r++) maxima[r] = L::broadcast(kMasked);

        int b = 0;
        const auto position = [&] { return (blocks.first + b) * kBlock; };
        for (; b + kWide <= blocks.count; b += kWide) {
            score<R, kWide>(queries, blocks.keys + b, head_dim, softcap, visible, position(), scores, maxima);
        }
        for (; b < blocks.count; b++) {
            score<R, 1>(queries, blocks.keys + b, head_dim, softcap, visible, position(), scores, maxima);
        }

        for (int r = 0; r < R; r++) {
            const float maximum = L::reduce_max(maxima[r]);
            // A row that sees nothing here keeps the lowest maximum and gets weights of 0.
            const Floats shift = L::broadcast(maximum == kMasked ? 0.0f : maximum);
            Floats sum = L::zero();
            for (int i = 0; i < blocks.count; i++) {
                float* sixteen = &scores[r][(blocks.first + i) * kBlock];
                const Floats weights = weight(L::load(sixteen), shift);
                sum = L::add(sum, weights);
                L::store(sixteen, weights);
            }
            float* partial = partials + r * partial_stride(head_dim);
            partial[head_dim] = maximum;
            partial[head_dim + 1] = L::reduce_add(sum);
        }

        int column = 0;
        for (; column + kWide * kLanes <= head_dim; column += kWide * kLanes) {
            weigh<R, kWide>(blocks, scores, head_dim, column, partials);
        }
        for (; column < head_dim; column += kLanes) weigh<R, 1>(blocks, scores, head_dim, column, partials);
    }

    static void clear(float* partial, int head_dim) {
        for (int d = 0; d < head_dim; d += kLanes) L::store(partial + d, L::zero());
        partial[head_dim] = kMasked;
        partial[head_dim + 1] = 0.0f;
    }

    // `running` takes in the next span. A partial that saw nothing leaves it bitwise as it was.
    static void merge(float* running, const float* partial, int head_dim) {
        const float before = running[head_dim];
        const float here = partial[head_dim];
        const float maximum = before > here ? before : here;
        const Floats keep = weight(L::broadcast(before), L::broadcast(maximum));
        const Floats take = weight(L::broadcast(here), L::broadcast(maximum));
        for (int d = 0; d < head_dim; d += kLanes) {
            const Floats kept = L::mul(L::load(running + d), keep);
            L::store(running + d, L::fma(L::load(partial + d), take, kept));
        }
        float sums[kLanes];
        const Floats kept = L::mul(L::broadcast(running[head_dim + 1]), keep);
        L::store(sums, L::fma(L::broadcast(partial[head_dim + 1]), take, kept));
        running[head_dim] = maximum;
        running[head_dim + 1] = sums[0];
    }

    static void finish(const float* running, int head_dim, float* output) {
        const Floats sum = L::broadcast(running[head_dim + 1]);
        for (int d = 0; d < head_dim; d += kLanes) L::store(output + d, L::div(L::load(running + d), sum));
    }
};

}  // namespace sojourn
