// Activations to int8: per row and group of 32, scale = absmax / 127, rounded to nearest even. Every instruction set
// computes the same bits: all operations are exactly rounded and none is fused.
#pragma once
#include "native/linear/linear.h"
#include "native/simd/lanes.h"

namespace sojourn {

// A group that holds an infinity or a NaN gets a NaN scale, so that the fault shows instead of a wrong number.
template <Lanes L>
float group_scale(typename L::Floats low, typename L::Floats high) {
    const auto a = L::abs(low), b = L::abs(high);
    const auto infinity = L::broadcast(__builtin_inff());
    if ((L::less(a, infinity) & L::less(b, infinity)) != 0xffff) return __builtin_nanf("");
    const float scale = L::reduce_max(L::max(a, b)) / 127.0f;
    // Below this the inverse could overflow, and the values do not matter.
    return scale < 0x1p-120f ? 0.0f : scale;
}

template <Lanes L>
void quantise(const Activations& x, Range rows) {
    const int groups = x.cols / kGroup;
    const auto bound = L::broadcast(127.0f), lower = L::broadcast(-127.0f);
    for (ptrdiff_t group = ptrdiff_t{rows.begin} * groups; group < ptrdiff_t{rows.end} * groups; ++group) {
        const auto low = L::load(x.values + group * kGroup), high = L::load(x.values + group * kGroup + kLanes);
        const float scale = group_scale<L>(low, high);
        const auto inverse = L::broadcast(scale == 0.0f ? 0.0f : 1.0f / scale);
        // The clamp matters only where the scale is NaN: the quants stay in range.
        const auto a = L::to_ints(L::max(L::min(L::mul(low, inverse), bound), lower));
        const auto b = L::to_ints(L::max(L::min(L::mul(high, inverse), bound), lower));
        L::store_int8(x.quants + group * kGroup, a);
        L::store_int8(x.quants + group * kGroup + kLanes, b);
        x.scales[group] = scale;
        x.isums[group] = L::reduce_add(L::add(a, b));
        x.sums[group] = scale * static_cast<float>(x.isums[group]);
    }
}

}  // namespace sojourn
