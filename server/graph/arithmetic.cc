#include "server/graph/arithmetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "c10/util/Exception.h"

namespace braid {
namespace {

using c10::IValue;

bool IsWhole(const IValue& value) { return value.isInt() || value.isBool(); }

int64_t Whole(const IValue& value) {
  if (value.isBool()) {
    return value.toBool() ? 1 : 0;
  }
  TORCH_CHECK(value.isInt(), "expected an integer, got ", value.tagKind());
  return value.toInt();
}

double Real(const IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(Whole(value));
}

bool AreWhole(const IValue* a) { return IsWhole(a[0]) && IsWhole(a[1]); }

bool IsTrue(const IValue& value) { return Real(value) != 0; }

// overflows: result of a __builtin_…_overflow() function.
void CheckFits(bool overflows) { TORCH_CHECK(!overflows, "a size needs more than 64 bits"); }

int64_t Multiply(int64_t a, int64_t b) {
  int64_t result = 0;
  CheckFits(__builtin_mul_overflow(a, b, &result));
  return result;
}

int64_t Subtract(int64_t a, int64_t b) {
  int64_t result = 0;
  CheckFits(__builtin_sub_overflow(a, b, &result));
  return result;
}

IValue Add(const IValue* a) {
  if (!AreWhole(a)) {
    return Real(a[0]) + Real(a[1]);
  }
  int64_t result = 0;
  CheckFits(__builtin_add_overflow(Whole(a[0]), Whole(a[1]), &result));
  return result;
}

IValue Sub(const IValue* a) {
  return AreWhole(a) ? IValue(Subtract(Whole(a[0]), Whole(a[1]))) : Real(a[0]) - Real(a[1]);
}

IValue Mul(const IValue* a) {
  return AreWhole(a) ? IValue(Multiply(Whole(a[0]), Whole(a[1]))) : Real(a[0]) * Real(a[1]);
}

IValue Neg(const IValue* a) {
  return IsWhole(*a) ? IValue(Subtract(0, Whole(*a))) : IValue(-Real(*a));
}

IValue Pos(const IValue* a) { return IsWhole(*a) ? IValue(Whole(*a)) : IValue(Real(*a)); }

// Returns the divisor of a[0] / a[1], checked for zero.
int64_t Divisor(const IValue* a) {
  const int64_t divisor = Whole(a[1]);
  TORCH_CHECK(divisor != 0, "division of a size by zero");
  return divisor;
}

double RealDivisor(const IValue* a) {
  const double divisor = Real(a[1]);
  TORCH_CHECK(divisor != 0, "division of a size by zero");
  return divisor;
}

// The result has the sign of the divisor.
double FloorMod(double value, double divisor) {
  const double rest = std::fmod(value, divisor);
  if (rest != 0 && (rest < 0) != (divisor < 0)) {
    return rest + divisor;
  }
  return rest == 0 ? std::copysign(0.0, divisor) : rest;
}

IValue Mod(const IValue* a) {
  if (!AreWhole(a)) {
    return FloorMod(Real(a[0]), RealDivisor(a));
  }
  const int64_t divisor = Divisor(a);
  if (divisor == -1) {
    return int64_t{0};  // The hardware overflows for the smallest integer.
  }
  const int64_t rest = Whole(a[0]) % divisor;
  return rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest;
}

IValue FloorDiv(const IValue* a) {
  if (!AreWhole(a)) {
    // CPython's algorithm, which is exact for large quotients.
    const double divisor = RealDivisor(a);
    const double rest = std::fmod(Real(a[0]), divisor);
    const double quotient = (Real(a[0]) - rest) / divisor;
    return std::round(rest != 0 && (rest < 0) != (divisor < 0) ? quotient - 1 : quotient);
  }
  const int64_t value = Whole(a[0]);
  const int64_t divisor = Divisor(a);
  if (divisor == -1) {
    return Subtract(0, value);
  }
  const int64_t quotient = value / divisor;
  return value % divisor != 0 && (value < 0) != (divisor < 0) ? quotient - 1 : quotient;
}

IValue TrueDiv(const IValue* a) {
  if (!AreWhole(a)) {
    return Real(a[0]) / RealDivisor(a);
  }
  // 64-bit integers are exact in it, and the quotient is rounded like Python's.
  const long double divisor = static_cast<long double>(Divisor(a));
  return static_cast<double>(static_cast<long double>(Whole(a[0])) / divisor);
}

IValue Pow(const IValue* a) {
  if (AreWhole(a) && Whole(a[1]) >= 0) {
    int64_t result = 1;
    int64_t base = Whole(a[0]);
    for (int64_t exponent = Whole(a[1]); exponent > 0; exponent /= 2) {
      if (exponent % 2 == 1) {
        result = Multiply(result, base);
      }
      if (exponent > 1) {
        base = Multiply(base, base);
      }
    }
    return result;
  }
  const double base = Real(a[0]);
  const double exponent = Real(a[1]);
  TORCH_CHECK(base != 0 || exponent >= 0, "division of a size by zero");
  TORCH_CHECK(base >= 0 || std::floor(exponent) == exponent,
              "a power of a negative number is not real");
  return std::pow(base, exponent);
}

// Type that represents 64-bit integers and doubles exactly.
long double Exact(const IValue& value) {
  return value.isDouble() ? static_cast<long double>(value.toDouble())
                          : static_cast<long double>(Whole(value));
}

IValue Eq(const IValue* a) { return Exact(a[0]) == Exact(a[1]); }
IValue Ne(const IValue* a) { return Exact(a[0]) != Exact(a[1]); }
IValue Lt(const IValue* a) { return Exact(a[0]) < Exact(a[1]); }
IValue Le(const IValue* a) { return Exact(a[0]) <= Exact(a[1]); }
IValue Gt(const IValue* a) { return Exact(a[0]) > Exact(a[1]); }
IValue Ge(const IValue* a) { return Exact(a[0]) >= Exact(a[1]); }

IValue And(const IValue* a) {
  if (a[0].isBool() && a[1].isBool()) {
    return a[0].toBool() && a[1].toBool();
  }
  return Whole(a[0]) & Whole(a[1]);
}

IValue Or(const IValue* a) {
  if (a[0].isBool() && a[1].isBool()) {
    return a[0].toBool() || a[1].toBool();
  }
  return Whole(a[0]) | Whole(a[1]);
}

IValue Not(const IValue* a) { return !IsTrue(*a); }

int64_t ShiftCount(const IValue* a) {
  const int64_t count = Whole(a[1]);
  TORCH_CHECK(count >= 0, "a size is shifted by ", count, " bits");
  return count;
}

IValue LeftShift(const IValue* a) {
  const int64_t value = Whole(a[0]);
  const int64_t count = ShiftCount(a);
  if (value == 0) {
    return value;
  }
  CheckFits(count >= 63);
  return Multiply(value, int64_t{1} << count);
}

IValue RightShift(const IValue* a) {
  const int64_t count = ShiftCount(a);
  return Whole(a[0]) >> (count < 63 ? count : 63);
}

IValue Max(const IValue* a) {
  if (AreWhole(a)) {
    return std::max(Whole(a[0]), Whole(a[1]));
  }
  return std::max(Real(a[0]), Real(a[1]));
}

IValue Min(const IValue* a) {
  if (AreWhole(a)) {
    return std::min(Whole(a[0]), Whole(a[1]));
  }
  return std::min(Real(a[0]), Real(a[1]));
}

IValue Choose(const IValue* a) { return IsTrue(a[0]) ? a[1] : a[2]; }

IValue ToWhole(double value) {
  // The smallest double that is too large for an integer is a power of two.
  TORCH_CHECK(std::abs(value) < std::ldexp(1.0, 63), "a size needs more than 64 bits: ", value);
  return static_cast<int64_t>(value);
}

IValue Trunc(const IValue* a) {
  return IsWhole(*a) ? IValue(Whole(*a)) : ToWhole(std::trunc(Real(*a)));
}
IValue Floor(const IValue* a) {
  return IsWhole(*a) ? IValue(Whole(*a)) : ToWhole(std::floor(Real(*a)));
}
IValue Ceil(const IValue* a) {
  return IsWhole(*a) ? IValue(Whole(*a)) : ToWhole(std::ceil(Real(*a)));
}

IValue Float(const IValue* a) { return Real(*a); }

IValue Sqrt(const IValue* a) {
  const double value = Real(*a);
  TORCH_CHECK(value >= 0, "square root of ", value);
  return std::sqrt(value);
}

constexpr std::array kOperators = {
    Arithmetic{"_operator.add", 2, Add},
    Arithmetic{"_operator.and_", 2, And},
    Arithmetic{"_operator.eq", 2, Eq},
    Arithmetic{"_operator.floordiv", 2, FloorDiv},
    Arithmetic{"_operator.ge", 2, Ge},
    Arithmetic{"_operator.gt", 2, Gt},
    Arithmetic{"_operator.le", 2, Le},
    Arithmetic{"_operator.lshift", 2, LeftShift},
    Arithmetic{"_operator.lt", 2, Lt},
    Arithmetic{"_operator.mod", 2, Mod},
    Arithmetic{"_operator.mul", 2, Mul},
    Arithmetic{"_operator.ne", 2, Ne},
    Arithmetic{"_operator.neg", 1, Neg},
    Arithmetic{"_operator.or_", 2, Or},
    Arithmetic{"_operator.pos", 1, Pos},
    Arithmetic{"_operator.pow", 2, Pow},
    Arithmetic{"_operator.rshift", 2, RightShift},
    Arithmetic{"_operator.sub", 2, Sub},
    Arithmetic{"_operator.truediv", 2, TrueDiv},
    Arithmetic{"math.ceil", 1, Ceil},
    Arithmetic{"math.floor", 1, Floor},
    Arithmetic{"math.sqrt", 1, Sqrt},
    Arithmetic{"math.trunc", 1, Trunc},
    Arithmetic{"torch._sym_sqrt", 1, Sqrt},
    Arithmetic{"torch.sym_float", 1, Float},
    Arithmetic{"torch.sym_int", 1, Trunc},
    Arithmetic{"torch.sym_ite", 3, Choose},
    Arithmetic{"torch.sym_max", 2, Max},
    Arithmetic{"torch.sym_min", 2, Min},
    Arithmetic{"torch.sym_not", 1, Not},
    Arithmetic{"torch.sym_sqrt", 1, Sqrt},
};

}  // namespace

const Arithmetic* FindArithmetic(absl::string_view target) {
  for (const Arithmetic& known : kOperators) {
    if (known.target == target) {
      return &known;
    }
  }
  return nullptr;
}

}  // namespace braid
