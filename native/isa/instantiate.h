// Fills the table of kernels from templates. Included only by the translation units of the instruction sets.
#pragma once
#include "native/attention/attend.h"
#include "native/elementwise/rows.h"
#include "native/isa/isa.h"
#include "native/linear/embed.h"
#include "native/linear/multiply.h"
#include "native/linear/quantise.h"
#include "native/sampler/vocabulary.h"
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
        .attend_f16 = Attend<L>::attend_f16,
        .attend_f32 = Attend<L>::attend_f32,
        .merge_partials = Attend<L>::merge_partials,
        .rms_norm = Rows<L>::rms_norm,
        .add = Rows<L>::add,
        .rotate = Rows<L>::rotate,
        .softcap = Rows<L>::softcap,
        .store_kv_f16 = Rows<L>::store_kv_f16,
        .store_kv_f32 = Rows<L>::store_kv_f32,
        .maximum = Vocabulary<L>::maximum,
        .first_at_least = Vocabulary<L>::first_at_least,
        .collect_at_least = Vocabulary<L>::collect_at_least,
        .exponentials = Vocabulary<L>::exponentials,
    };
}

}  // namespace sojourn
