// A network's pass at a tile of units and cases, written once over the lanes of arithmetic.hpp.
//
// A tile is in registers: UNITS units at CASES lanes, a CPU's packs of cases or a device's single ones. Which tiles there
// are, who has which, and where their numbers are in memory, each kernel says by what it passes:
//
//     rows      step() goes from one to the next. Weights have at(m), that into unit m of the row at hand; values have
//               load(to), at the tile's cases; factors of a gradient have load(i, to), of unit i at the cases at hand.
//     a Tile    begin(tile) sets what sums begin with; each_link(f) calls f(link) for those into its units, or out of
//               them; with_activation(f) calls f(Number<activation>()), outputs being IDENTITY; has(m) tells whether
//               unit m is one, and no copy that fills the tile; and what the passes below say.
//     a link    add_products(tile), by multiply_add; of those into units has_biases() and bias(m).
//
// As arithmetic.hpp it has no #include: cuda.py puts it behind that text.
#ifndef RAYFBNN_NETWORK_HPP
#define RAYFBNN_NETWORK_HPP

#ifdef __CUDACC__
#define RAYFBNN_UNROLL_TILE _Pragma("unroll")
#define RAYFBNN_UNROLL_ROWS _Pragma("unroll (Values::AT_ONCE)")
#define RAYFBNN_INLINED
#else
#define RAYFBNN_UNROLL_TILE _Pragma("GCC unroll 16")
#define RAYFBNN_UNROLL_ROWS
#define RAYFBNN_INLINED __attribute__((always_inline))
#endif

namespace RAYFBNN_NAMESPACE {

template <int N>
struct Number {
    static constexpr int value = N;
};

// sums[m][p] += sum over n rows of weights.at(m) times values at p.
template <int UNITS, int CASES, class V, class Weights, class Values>
RAYFBNN_INLINE void multiply_add(V (&sums)[UNITS][CASES], int n, Weights weights, Values values) {
    RAYFBNN_UNROLL_ROWS
    for (int k = 0; k < n; ++k) {
        V value[CASES];
        values.load(value);
        RAYFBNN_UNROLL_TILE
        for (int m = 0; m < UNITS; ++m) {
            const V weight = weights.at(m);
            RAYFBNN_UNROLL_TILE
            for (int p = 0; p < CASES; ++p) sums[m][p] += weight * value[p];
        }
        values.step(), weights.step();
    }
}

// sums[i][j] += sum over n times CASES cases of a unit's value times a unit's derivative; eqs. 50-57.
template <int CASES, int ROWS, int UNITS, class V, class Values, class Slopes>
RAYFBNN_INLINE void add_products(V (&sums)[ROWS][UNITS], int n, Values values, Slopes slopes) {
    for (int k = 0; k < n; ++k) {
        V slope[UNITS][CASES];
        RAYFBNN_UNROLL_TILE
        for (int j = 0; j < UNITS; ++j) slopes.load(j, slope[j]);
        RAYFBNN_UNROLL_TILE
        for (int i = 0; i < ROWS; ++i) {
            V value[CASES];
            values.load(i, value);
            RAYFBNN_UNROLL_TILE
            for (int j = 0; j < UNITS; ++j) {
                RAYFBNN_UNROLL_TILE
                for (int p = 0; p < CASES; ++p) sums[i][j] += value[p] * slope[j][p];
            }
        }
        values.step(), slopes.step();
    }
}

// Values v = a(u) of units whose summed inputs are u = sum over links of W' v + b, and the same with offsets, as the
// units behind see them; eqs. 1-3.
//
// keep(activation, m, v, seen, slope) takes those of unit m; slope is a'(u), of value where has_kept_slope, or where the
// tile WANTS_SLOPES. offset(m) is read where has_offsets().
template <class L, int UNITS, int CASES, class Tile>
RAYFBNN_INLINE void forward_tile(const Tile& tile) {
    typedef typename L::Value V;
    V u[UNITS][CASES];
    tile.begin(u);
    tile.each_link([&](auto link) RAYFBNN_INLINED {
        link.add_products(u);
        if (!link.has_biases()) return;
        RAYFBNN_UNROLL_TILE
        for (int m = 0; m < UNITS; ++m) {
            const V bias = link.bias(m);
            RAYFBNN_UNROLL_TILE
            for (int p = 0; p < CASES; ++p) u[m][p] += bias;
        }
    });
    tile.with_activation([&](auto activation) RAYFBNN_INLINED {
        constexpr int A = decltype(activation)::value;
        static_assert(A >= IDENTITY && A <= SIN, "an activation that arithmetic.hpp does not know");
        RAYFBNN_UNROLL_TILE
        for (int m = 0; m < UNITS; ++m) {
            if (!tile.has(m)) continue;
            V seen[CASES], slope[CASES];
            RAYFBNN_UNROLL_TILE
            for (int p = 0; p < CASES; ++p) {
                slope[p] = L::splat(1);
                u[m][p] = activate<L>(A, u[m][p], slope[p]);
                if (Tile::WANTS_SLOPES && !has_kept_slope(A)) slope[p] = slope_of<L>(A, u[m][p]);
                seen[p] = u[m][p];
                if (tile.has_offsets()) seen[p] += tile.offset(m);
            }
            tile.keep(activation, m, u[m], seen, slope);
        }
    });
}

// Derivatives of hidden units by their values, from those by the summed inputs of the units behind, and by their own
// summed inputs; eqs. 41, 42.
//
// The first go to keep_by_values(derivatives) where has_offsets(), the second to keep(m, derivatives of unit m);
// load_slopes(activation, m, to) gives a'(u).
template <class L, int UNITS, int CASES, class Tile>
RAYFBNN_INLINE void backward_tile(const Tile& tile) {
    typedef typename L::Value V;
    V derivative[UNITS][CASES];
    tile.begin(derivative);
    tile.each_link([&](auto link) RAYFBNN_INLINED { link.add_products(derivative); });
    if (tile.has_offsets()) tile.keep_by_values(derivative);
    tile.with_activation([&](auto activation) RAYFBNN_INLINED {
        RAYFBNN_UNROLL_TILE
        for (int m = 0; m < UNITS; ++m) {
            if (!tile.has(m)) continue;
            V slope[CASES];
            tile.load_slopes(activation, m, slope);
            RAYFBNN_UNROLL_TILE
            for (int p = 0; p < CASES; ++p) derivative[m][p] *= slope[p];
            tile.keep(m, derivative[m]);
        }
    });
}

}  // namespace RAYFBNN_NAMESPACE
#endif
