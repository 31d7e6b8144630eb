// The distribution function of real targets at guesses, with its derivatives.
#ifndef RAYFBNN_REDUCE_DISTRIBUTIONS_HPP
#define RAYFBNN_REDUCE_DISTRIBUTIONS_HPP

#include "block.hpp"
#include "normal.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
class Distributions : public Sums<S> {
   public:
    typedef typename Pack<S>::Type L;
    typedef Lane<PackDouble> D;
    static constexpr int W = Lane<L>::width, N = Doubles<S>::N;

    explicit Distributions(const Job& job) : Sums<S>(job) {
        const long size = here.n_guesses() * here.most_places();
        guesses = Buffer<S>(size), partial = Buffer<S>(3 * size), totals = Buffer<double>(3 * size);
    }

   private:
    using Sums<S>::here;
    Buffer<S> guesses, partial;
    Buffer<double> totals;

    void begin() override {
        const long size = 3 * here.n_guesses() * here.places();
        here.take(guesses.data(), static_cast<const S*>(here.wanted.guesses), here.n_guesses());
        clear(totals, size);
        memset(partial.data(), 0, size * sizeof(S));
    }

    void end() override { here.add_to(here.wanted.sums, totals, 3 * here.n_guesses()); }

    void add() override {
        for (int o = 0; o < here.net.n_targets; ++o) {
            if (here.net.model == HETEROSCEDASTIC)
                add_at_guesses(o, [&](long p) { return inverse_scale(o, p); });
            else {
                const double sigma = here.wanted.sigmas[long(here.draw) * here.net.n_targets + o];
                const L inverse = splat<L>(S(smaller_of(1 / sigma)));
                add_at_guesses(o, [&](long) { return inverse; });
            }
        }
        if (here.draw % DRAWS_IN_SINGLE == DRAWS_IN_SINGLE - 1 || here.draw + 1 == here.job.n_chains) flush();
    }
    static constexpr int DRAWS_IN_SINGLE = 64;  // whose sums are in the type of the outputs

    // Above this no guess is near a mean, and products with densities would overflow.
    static constexpr double MOST_INVERSE = sizeof(S) == sizeof(double) ? 1e140 : 1e16;
    static double smaller_of(double inverse) { return inverse < MOST_INVERSE ? inverse : MOST_INVERSE; }

    // exp(log precision / 2) of the noise.
    RAYFBNN_METHOD L inverse_scale(int o, long p) const {
        const Doubles<S> s(here.outputs()[(here.n_outputs / 2 + o) * here.n_packs + p]);
        L inverse;
        double found[W];
        for (int j = 0; j < N; ++j) {
            const PackDouble log_precision = s.part[j] - softplus<D>(s.part[j] + here.net.alpha);
            const PackDouble x = D::exponential(D::at_most(D::at_least(log_precision, -MOST_LOG), MOST_LOG) * 0.5);
            const PackDouble bounded = D::at_most(x, MOST_INVERSE);
            memcpy(found + j * D::width, &bounded, sizeof bounded);
        }
        for (int k = 0; k < W; ++k) inverse[k] = S(found[k]);
        return inverse;
    }

    template <class F>
    RAYFBNN_METHOD void add_at_guesses(int o, const F& inverse_at) {
        if (here.net.model == STUDENT_T)
            add_at_guesses<true>(o, inverse_at);
        else
            add_at_guesses<false>(o, inverse_at);
    }

    template <bool IS_T, class F>
    RAYFBNN_METHOD void add_at_guesses(int o, const F& inverse_at) {
        const L* v = here.outputs() + o * here.n_packs;
        const L* g = reinterpret_cast<const L*>(guesses.data()) + o * here.n_packs;
        L* sums = reinterpret_cast<L*>(partial.data()) + o * here.n_packs;
        const long step = here.net.n_targets * here.n_packs, part = here.wanted.n_guesses * step;
        for (long p = 0; p < here.n_packs; ++p) {
            const L inverse = inverse_at(p), mean = v[p];
            for (long q = 0; q < here.wanted.n_guesses; ++q) {
                L* const sum = sums + q * step + p;
                L z = (g[q * step + p] - mean) * inverse, cdf, density, slope;
                if constexpr (IS_T)
                    student_t(z, cdf, density, slope);
                else
                    normal(z, cdf, density), slope = -z;
                density *= inverse;
                sum[0] += cdf;
                sum[part] += density;
                sum[2 * part] += slope * density * inverse;
            }
        }
    }

    // 1 - F at u >= 0 from the table, and its derivative by u.
    RAYFBNN_METHOD L tail_at(L u, L& derivative) const {
        const L place = Lane<L>::at_most(u * S(here.wanted.table_rate), S(here.wanted.n_places) - S(0.01));
        L c0, c1, c2, c3, t;
        for (int k = 0; k < W; ++k) {
            const int cell = place[k] > 0 ? int(place[k]) : 0;
            const double* c = here.wanted.table + 4L * cell;
            t[k] = place[k] - S(cell), c0[k] = S(c[0]), c1[k] = S(c[1]), c2[k] = S(c[2]), c3[k] = S(c[3]);
        }
        derivative = (c1 + t * (S(2) * c2 + S(3) * t * c3)) * S(here.wanted.table_rate);
        return c0 + t * (c1 + t * (c2 + t * c3));
    }

    // The distribution function and the density of t noise, and the density's relative slope, from a table of cubics in
    // u = asinh(z / sqrt(df)).
    RAYFBNN_METHOD void student_t(L z, L& cdf, L& density, L& slope) const {
        const S df = S(here.net.alpha), scale = S(1 / __builtin_sqrt(here.net.alpha));
        const L a = Lane<L>::absolute(z) * scale, square = a * a + S(1);
        const L root = Lane<L>::quick_root(square);
        L by_u;
        const L tail = tail_at(Lane<L>::log(a + root), by_u);
        cdf = Lane<L>::select(z > 0, S(1) - tail, tail);
        density = -by_u * scale / root;
        slope = -z * (df + S(1)) / (df * square);
    }

    void flush() {
        const long size = 3L * here.wanted.n_guesses * here.net.n_targets * here.places();
        S* from = partial;
        double* to = totals;
        for (long k = 0; k < size; ++k) to[k] += double(from[k]), from[k] = 0;
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
