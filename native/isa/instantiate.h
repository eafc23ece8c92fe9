// Fills the table of kernels from templates. Included only by the translation units of the instruction sets.
#pragma once
#include "native/isa/isa.h"
#include "native/linear/embed.h"
#include "native/linear/multiply.h"
#include "native/linear/quantise.h"
#include "native/simd/lanes.h"

namespace sojourn {

template <Lanes L>
constexpr Kernels instantiate(const char* name) {
    return {
        .name = name,
        .quantise = quantise<L>,
        .linear = linear<L>,
        .gated = gated<L>,
        .embed_row = embed_row<L>,
    };
}

}  // namespace sojourn
