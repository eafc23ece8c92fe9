// exp, tanh and the activations, over any lanes. Errors are about 1e-6 relative (tests/test_lanes.cpp has the bounds).
#pragma once
#include "native/simd/lanes.h"

namespace sojourn {

// e^x by Cephes' polynomial on [-ln 2 / 2, ln 2 / 2]. Below -87 the result is 0, above 88 it stays at e^88; NaN passes.
template <Lanes L>
typename L::Floats exp(typename L::Floats x) {
    using Floats = typename L::Floats;
    const Floats lowest = L::broadcast(-87.0f);
    // The bound comes first, so that a NaN x is what min and max return.
    const Floats clamped = L::max(lowest, L::min(L::broadcast(88.0f), x));
    const auto n = L::to_ints(L::mul(clamped, L::broadcast(1.44269504f)));
    // ln 2 in two parts; the first has few bits, so n times it is exact and the difference loses nothing.
    const Floats whole = L::to_floats(n);
    Floats r = L::fnma(whole, L::broadcast(0.693359375f), clamped);
    r = L::fnma(whole, L::broadcast(-2.12194440e-4f), r);
    Floats p = L::broadcast(1.9875691500e-4f);
    p = L::fma(p, r, L::broadcast(1.3981999507e-3f));
    p = L::fma(p, r, L::broadcast(8.3334519073e-3f));
    p = L::fma(p, r, L::broadcast(4.1665795894e-2f));
    p = L::fma(p, r, L::broadcast(1.6666665459e-1f));
    p = L::fma(p, r, L::broadcast(5.0000001201e-1f));
    p = L::fma(p, L::mul(r, r), L::add(r, L::broadcast(1.0f)));
    return L::select(L::less(x, lowest), L::zero(), L::mul(p, L::power_of_two(n)));
}

template <Lanes L>
typename L::Floats sigmoid(typename L::Floats x) {
    const auto one = L::broadcast(1.0f);
    return L::div(one, L::add(one, exp<L>(L::sub(L::zero(), x))));
}

// 1 - 2 / (e^2x + 1): the absolute error is what counts where this is used (soft caps, GELU).
template <Lanes L>
typename L::Floats tanh(typename L::Floats x) {
    const auto one = L::broadcast(1.0f);
    const auto e = exp<L>(L::add(x, x));
    return L::sub(one, L::div(L::broadcast(2.0f), L::add(e, one)));
}

template <Lanes L>
typename L::Floats silu(typename L::Floats x) {
    return L::mul(x, sigmoid<L>(x));
}

// GELU by its tanh approximation: x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <Lanes L>
typename L::Floats gelu_tanh(typename L::Floats x) {
    const auto cubic = L::fma(L::mul(x, x), L::broadcast(0.044715f), L::broadcast(1.0f));
    return L::mul(x, sigmoid<L>(L::mul(L::mul(x, L::broadcast(1.5957691216057308f)), cubic)));
}

}  // namespace sojourn
