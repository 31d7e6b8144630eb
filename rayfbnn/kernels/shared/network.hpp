// A network's pass at a tile of units and cases, written once over the lanes of arithmetic.hpp.
//
// A tile is in registers: UNITS units at CASES lanes, which are packs of cases on a CPU and single cases on a device.
// Each kernel has its own tiles and its own layout of their numbers in memory, and describes them by its arguments:
//
//     rows      step() goes from one row to the next. Rows of weights have at(m), the weight into unit m. Rows of
//               values have load(to), the values at the tile's cases. Factors of a gradient have load(i, to), those of
//               unit i.
//     a Tile    begin(tile) sets the starting values of the sums. each_link(f) calls f(link) for each link into the
//               units, or out of them. with_activation(f) calls f(Number<activation>()), which is IDENTITY for outputs.
//               has(m) is false if unit m is only a copy that fills the tile. The passes below name what else they
//               call.
//     a link    add_products(tile) adds the link's products by multiply_add. Links into units have has_biases() and
//               bias(m).
//
// Like arithmetic.hpp this file includes nothing: cuda/generate.py puts its text behind that of arithmetic.hpp.
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

// sums[m][p] += the sum over n rows of weights.at(m) times the value at p.
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

// sums[i][j] += the sum over n * CASES cases of the value of unit i times the derivative of unit j; eqs. 50-57.
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

// The values v = a(u) of units with the summed inputs u = sum over links of W' v + b, and the values with offsets
// added, which later layers see; eqs. 1-3.
//
// keep(activation, m, v, seen, slope) takes the results of unit m. The slope a'(u) is set if has_kept_slope(activation)
// or if the tile WANTS_SLOPES. offset(m) is read if has_offsets().
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

// The derivatives of the potential by the values of hidden units, and then by the summed inputs of these units, from
// the derivatives by the summed inputs of later layers; eqs. 41, 42.
//
// Derivatives by values go to keep_by_values(derivatives) if has_offsets(). Derivatives by the summed inputs of unit m
// go to keep(m, derivatives). load_slopes(activation, m, to) gives a'(u).
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
