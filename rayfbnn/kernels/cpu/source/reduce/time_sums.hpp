// The distribution function of survival times at guesses, with its derivatives by the logarithm of the time.
#ifndef RAYFBNN_REDUCE_TIME_SUMS_HPP
#define RAYFBNN_REDUCE_TIME_SUMS_HPP

#include "block.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S>
class TimeSums : public Sums<S> {
   public:
    typedef typename Pack<S>::Type L;
    typedef Lane<PackDouble> D;
    typedef Predictive<D> P;
    static constexpr int W = Lane<L>::width, N = Doubles<S>::N;

    explicit TimeSums(const Job& job) : Sums<S>(job) {
        const long size = here.n_guesses() * here.most_places(), n_cells = here.wanted.n_cells;
        lived = Buffer<double>((1 + n_cells) * size), hazards = Buffer<double>(D::width * n_cells);
        totals = Buffer<double>(3 * size);
    }

   private:
    using Sums<S>::here;
    Buffer<double> lived, hazards, totals;

    void end() override { here.add_to(here.wanted.sums, totals, 3 * here.n_guesses()); }

    // For each guess of each case: the guess, and the time in each piece up to the guess.
    void begin() override {
        const long n_guesses = here.wanted.n_guesses;
        clear(totals, 3 * n_guesses * here.places());
        here.take(lived.data(), static_cast<const double*>(here.wanted.guesses), n_guesses);
        for (long k = 0; k < n_guesses * here.places(); ++k)
            for (int j = 0; j < here.wanted.n_cells; ++j) {
                const double time = lived[k], start = here.wanted.starts[j];
                double end = time;
                if (j + 1 < here.wanted.n_cells && here.wanted.starts[j + 1] < time) end = here.wanted.starts[j + 1];
                lived[(1 + j) * n_guesses * here.places() + k] = end > start ? end - start : 0;
            }
    }

    void add() override {
        const long n_guesses = here.wanted.n_guesses, size = n_guesses * here.places();
        PackDouble* h = pack_at(hazards, 0);
        for (long c = 0; c < here.places(); c += D::width) {
            for (int j = 0; j < here.wanted.n_cells; ++j)
                h[j] = D::exponential(P::bounded_log_hazard(here.log_hazard(j, c)));
            for (long q = 0; q < n_guesses; ++q) {
                const long at = q * here.places() + c;
                const PackDouble guess = *pack_at(lived, at);
                PackDouble integral = {}, last = h[0];  // the hazard at the guess is that of the last piece begun
                for (int j = 0; j < here.wanted.n_cells; ++j) {
                    const PackDouble time = *pack_at(lived, (1 + j) * size + at);
                    integral += h[j] * time;
                    last = D::select(guess < here.wanted.starts[j], last, h[j]);
                }
                PackDouble cdf, density, slope;
                P::time_distribution(integral, last, guess, cdf, density, slope);
                *pack_at(totals, at) += cdf;
                *pack_at(totals, size + at) += density;
                *pack_at(totals, 2 * size + at) += slope;
            }
        }
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
