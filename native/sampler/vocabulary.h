// Passes over one row of logits.
#pragma once
#include "native/sampler/sums.h"
#include "native/simd/lanes.h"
#include "native/simd/math.h"

namespace sojourn {

template <class L>
struct Vocabulary {
    using Floats = typename L::Floats;

    // Of lanes at and beyond the end, the lowest; so they never win.
    static Floats load_or(const float* x, int count, float otherwise) {
        return L::select(first_lanes(count), L::load_first(x, count), L::broadcast(otherwise));
    }

    // The highest logit, or NaN if any is NaN.
    static float maximum(const float* x, int n) {
        const Floats infinity = L::broadcast(__builtin_inff());
        Floats highest = L::broadcast(-__builtin_inff());
        LaneMask ordered = 0xffff;
        for (int i = 0; i < n; i += kLanes) {
            const Floats a = load_or(x + i, n - i, -__builtin_inff());
            // NaN compares as nothing, so it is the only value neither below infinity nor above its negative.
            ordered &= static_cast<LaneMask>(L::less(a, infinity) | L::less(L::zero(), a));
            highest = L::max(highest, a);
        }
        return ordered == 0xffff ? L::reduce_max(highest) : __builtin_nanf("");
    }

    // The lowest index with x >= bound; n if there is none.
    static int first_at_least(const float* x, int n, float bound) {
        const Floats lowest = L::broadcast(bound);
        for (int i = 0; i < n; i += kLanes) {
            const int below = L::less(L::load_first(x + i, n - i), lowest);
            const int found = ~below & first_lanes(n - i);
            if (found != 0) return i + __builtin_ctz(static_cast<unsigned>(found));
        }
        return n;
    }

    // Indices with x >= bound, ascending, into `indices` (room for n); returns how many.
    static int collect_at_least(const float* x, int n, float bound, int* indices) {
        const Floats lowest = L::broadcast(bound);
        int count = 0;
        for (int i = 0; i < n; i += kLanes) {
            const int below = L::less(L::load_first(x + i, n - i), lowest);
            for (int found = ~below & first_lanes(n - i); found != 0; found &= found - 1) {
                indices[count++] = i + __builtin_ctz(static_cast<unsigned>(found));
            }
        }
        return count;
    }

    // weights = exp((x - maximum) * factor); sums[i] is the sum of the i-th kSumBlock weights.
    static void exponentials(const float* x, int n, float maximum, float factor, float* weights, double* sums) {
        const Floats shift = L::broadcast(maximum);
        const Floats scale = L::broadcast(factor);
        for (int begin = 0; begin < n; begin += kSumBlock) {
            const int end = begin + kSumBlock < n ? begin + kSumBlock : n;
            Floats sum = L::zero();
            for (int i = begin; i < end; i += kLanes) {
                const Floats difference = L::sub(load_or(x + i, end - i, -__builtin_inff()), shift);
                const Floats weight = exp<L>(L::mul(difference, scale));
                L::store_first(weights + i, weight, end - i);
                sum = L::add(sum, weight);
            }
            sums[begin / kSumBlock] = static_cast<double>(L::reduce_add(sum));
        }
    }
};

}  // namespace sojourn
