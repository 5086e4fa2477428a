// Lanes are the innermost axis: one vector holds the same element of every model.
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef double vd __attribute__((vector_size(8 * LANES)));
typedef long vl __attribute__((vector_size(8 * LANES)));
typedef int vi __attribute__((vector_size(4 * LANES)));      // integers: indices and counts, which fit 32 bits
typedef unsigned vb __attribute__((vector_size(4 * LANES))); // a mask: no bit or all bits per lane
#define FOR_LANES for (int l = 0; l < LANES; l++)
#define KERNEL static void __attribute__((noinline))

extern "C" {
double exp(double); double log(double); double log1p(double); double expm1(double); double log2(double);
double sin(double); double cos(double); double tan(double); double tanh(double); double erf(double);
double pow(double, double); double fmod(double, double); double floor(double); double ceil(double);
double rint(double); double trunc(double); double atan2(double, double); double asin(double); double acos(double);
double atan(double); double sinh(double); double cosh(double); double log10(double); double lgamma(double);
}

static inline vf all_vf(float x) { return x - (vf){}; }
static inline vd all_vd(double x) { return x - (vd){}; }
static inline vi all_vi(int x) { return x - (vi){}; }
static inline vb all_vb(int x) { return (x ? ~0u : 0u) - (vb){}; }

static inline vf to_vf(vf x) { return x; }
static inline vf to_vf(vd x) { return __builtin_convertvector(x, vf); }
static inline vf to_vf(vi x) { return __builtin_convertvector(x, vf); }
static inline vf to_vf(vb x) { return (vf)(x & (vb)all_vf(1)); }
static inline vd to_vd(vd x) { return x; }
static inline vd to_vd(vf x) { return __builtin_convertvector(x, vd); }
static inline vd to_vd(vi x) { return __builtin_convertvector(x, vd); }
static inline vd to_vd(vb x) { return to_vd(to_vf(x)); }
static inline vi to_vi(vi x) { return x; }
static inline vi to_vi(vf x) { return __builtin_convertvector(x, vi); }
static inline vi to_vi(vd x) { return __builtin_convertvector(x, vi); }
static inline vi to_vi(vb x) { return (vi)(x & 1); }
static inline vb mask(vi x) { return (vb)x; } // the result of a comparison as a mask
static inline vb mask(vl x) { return (vb)__builtin_convertvector(x, vi); }
static inline vb to_vb(vb x) { return x; }
static inline vb to_vb(vf x) { return mask(x != 0); }
static inline vb to_vb(vd x) { return mask(x != 0); }
static inline vb to_vb(vi x) { return mask(x != 0); }
static inline vf choose(vb c, vf a, vf b) { return (vi)c ? a : b; }
static inline vb choose(vb c, vb a, vb b) { return (c & a) | (~c & b); }
static inline vi choose(vb c, vi a, vi b) { return (vi)c ? a : b; }
static inline vd choose(vb c, vd a, vd b) { return __builtin_convertvector((vi)c, vl) ? a : b; }

// An index of its own per lane, kept inside its axis: that of a lane that is idle or has diverged may be anything.
static inline vi inside(vi i, int size) { return choose(mask(i < 0), all_vi(0), choose(mask(i >= size), all_vi(size - 1), i)); }
static inline vi wrapped(vi i, int size) { return inside(choose(mask(i < 0), i + size, i), size); } // -1 is the last one
static inline vf gather(const vf *a, vi i) { vf y; FOR_LANES y[l] = ((const float *)a)[(long)i[l] * LANES + l]; return y; }
static inline vd gather(const vd *a, vi i) { vd y; FOR_LANES y[l] = ((const double *)a)[(long)i[l] * LANES + l]; return y; }
static inline vi gather(const vi *a, vi i) { vi y; FOR_LANES y[l] = ((const int *)a)[(long)i[l] * LANES + l]; return y; }
static inline vb gather(const vb *a, vi i) { vb y; FOR_LANES y[l] = ((const unsigned *)a)[(long)i[l] * LANES + l]; return y; }
static inline vf pick(const float *a, vi i) { vf y; FOR_LANES y[l] = a[i[l]]; return y; }
static inline vd pick(const double *a, vi i) { vd y; FOR_LANES y[l] = a[i[l]]; return y; }
static inline vi pick(const int *a, vi i) { vi y; FOR_LANES y[l] = a[i[l]]; return y; }
template <class T> static inline void put(T *a, vi i, T x) { FOR_LANES a[i[l]][l] = x[l]; }
template <class T> static inline void put_sum(T *a, vi i, T x) { FOR_LANES a[i[l]][l] += x[l]; }

template <class T> static inline vb is_nan(T x) { return mask(x != x); }
template <class T> static inline T larger(T a, T b) { return choose(mask(a > b) | is_nan(a), a, b); }
template <class T> static inline T smaller(T a, T b) { return choose(mask(a < b) | is_nan(a), a, b); }
template <class T> static inline T magnitude(T x) { return choose(mask(x < 0), -x, x); }
template <class T> static inline T sign(T x) { return choose(mask(x > 0), x - x + 1, choose(mask(x < 0), x - x - 1, x)); }

#define BY_LANE(name, call_f, call_d) \
  static inline vf name(vf x) { vf y; FOR_LANES y[l] = (float)call_f(x[l]); return y; } \
  static inline vd name(vd x) { vd y; FOR_LANES y[l] = call_d(x[l]); return y; }
BY_LANE(v_sqrt, __builtin_sqrtf, __builtin_sqrt)
BY_LANE(v_sin, sin, sin) BY_LANE(v_cos, cos, cos) BY_LANE(v_tan, tan, tan)
BY_LANE(v_floor, __builtin_floorf, __builtin_floor) BY_LANE(v_ceil, __builtin_ceilf, __builtin_ceil)
BY_LANE(v_round, __builtin_rintf, __builtin_rint) BY_LANE(v_trunc, __builtin_truncf, __builtin_trunc)
BY_LANE(v_asin, asin, asin) BY_LANE(v_acos, acos, acos) BY_LANE(v_atan, atan, atan)
BY_LANE(v_sinh, sinh, sinh) BY_LANE(v_cosh, cosh, cosh) BY_LANE(v_log10, log10, log10)
BY_LANE(v_lgamma, lgamma, lgamma)
static inline vf v_pow(vf x, vf e) { vf y; FOR_LANES y[l] = (float)pow(x[l], e[l]); return y; }
static inline vd v_pow(vd x, vd e) { vd y; FOR_LANES y[l] = pow(x[l], e[l]); return y; }
static inline vf v_fmod(vf x, vf e) { vf y; FOR_LANES y[l] = (float)fmod(x[l], e[l]); return y; }
static inline vd v_fmod(vd x, vd e) { vd y; FOR_LANES y[l] = fmod(x[l], e[l]); return y; }
static inline vf v_atan2(vf x, vf e) { vf y; FOR_LANES y[l] = (float)atan2(x[l], e[l]); return y; }
static inline vd v_atan2(vd x, vd e) { vd y; FOR_LANES y[l] = atan2(x[l], e[l]); return y; }
static inline vi not_zero(vi e) { return choose(mask(e == 0), all_vi(1), e); } // an idle lane holds zeros
static inline vi v_mod(vi x, vi e) { e = not_zero(e); vi r = x % e; return choose(mask((r != 0)) & mask((r < 0) != (e < 0)), r + e, r); }

#define DOUBLES(name, call) static inline vd name(vd x) { vd y; FOR_LANES y[l] = call(x[l]); return y; }
DOUBLES(v_exp, exp) DOUBLES(v_log, log) DOUBLES(v_log1p, log1p) DOUBLES(v_expm1, expm1) DOUBLES(v_log2, log2)
DOUBLES(v_tanh, tanh) DOUBLES(v_erf, erf)

// exp: 2^n · p(r) with |r| ≤ ln 2 / 2 and a Taylor polynomial of degree 7; 2^n in two factors, for denormal results.
static inline vf v_exp(vf x) {
  const vf low = all_vf(-104.f), high = all_vf(89.f);
  vf c = x < low ? low : (x > high ? high : x);
  vf n = v_round(c * 1.44269504088896341f);
  vf r = c - n * 0.693359375f + n * 2.12194440e-4f;
  vf p = 1.f + r * (1.f + r * (.5f + r * (1.f / 6 + r * (1.f / 24 + r * (1.f / 120 + r * (1.f / 720 + r * (1.f / 5040)))))));
  vi k = __builtin_convertvector(n, vi), half = k >> 1;
  vf y = p * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23);
  return x == x ? y : x;
}
// log: of the mantissa m in [√½, √2) by the series of 2 atanh((m - 1) / (m + 1)), plus the exponent times ln 2.
static inline vf v_log(vf x) {
  vi tiny = x < 1.17549435e-38f;
  vf s = tiny ? x * 8388608.f : x;
  vi bits = (vi)s, e = (bits >> 23) - 127;
  vf m = (vf)((bits & 0x007fffff) | 0x3f800000);
  vi big = m > 1.41421356f;
  m = big ? m * .5f : m;
  vf n = __builtin_convertvector(e - big, vf) - (tiny ? all_vf(23.f) : all_vf(0.f));
  vf q = (m - 1.f) / (m + 1.f), z = q * q;
  vf y = 2.f * q * (1.f + z * (1.f / 3 + z * (1.f / 5 + z * (1.f / 7 + z * (1.f / 9 + z * (1.f / 11))))));
  y = n * 0.693359375f + (y - n * 2.12194440e-4f);
  const vf inf = all_vf(__builtin_inff());
  y = x == inf ? inf : y;
  y = x == 0.f ? -inf : y;
  return x < 0.f ? all_vf(__builtin_nanf("")) : (x == x ? y : x);
}
static inline vf v_log1p(vf x) { // what 1 + x loses is added to first order
  vf u = 1.f + x, y = v_log(u);
  return (u == all_vf(__builtin_inff())) | (u <= 0.f) ? y : y - ((u - 1.f) - x) / u;
}
static inline vf v_expm1(vf x) {
  vf p = x * (1.f + x * (.5f + x * (1.f / 6 + x * (1.f / 24 + x * (1.f / 120 + x * (1.f / 720))))));
  return magnitude(x) < .3f ? p : v_exp(x) - 1.f;
}
static inline vf v_log2(vf x) { return v_log(x) * 1.44269504088896341f; }
static inline vf v_tanh(vf x) {
  vf z = x * x, t = v_exp(-2.f * magnitude(x)), y = (1.f - t) / (1.f + t);
  vf p = x * (1.f + z * (-1.f / 3 + z * (2.f / 15 + z * (-17.f / 315 + z * (62.f / 2835)))));
  return magnitude(x) < .2f ? p : (x < 0.f ? -y : y);
}
// erf by formula 7.1.26 of Abramowitz and Stegun: within 1.5e-7.
static inline vf v_erf(vf x) {
  vf a = magnitude(x), t = 1.f / (1.f + .3275911f * a);
  vf p = t * (.254829592f + t * (-.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  vf y = 1.f - p * v_exp(-a * a);
  return x < 0.f ? -y : y;
}
template <class T> static inline T v_sigmoid(T x) { return 1 / (1 + v_exp(-x)); }
