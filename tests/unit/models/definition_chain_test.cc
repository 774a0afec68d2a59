#include "server/models/definition_chain.h"

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr char kFile[] = "code/__torch__/a.py";
// The levels of a function by Function(), and more definitions than are borne.
constexpr size_t kLevels = 9;
constexpr size_t kMany = 400;

using Files = std::map<std::string, std::string>;

absl::Status Check(const Files& files) {
  DefinitionChain chain;
  for (const auto& [record, source] : files) {
    BRAID_RETURN_IF_ERROR(chain.AddFile(record));
  }
  for (const auto& [record, source] : files) {
    BRAID_RETURN_IF_ERROR(chain.Read(record, source));
  }
  return chain.Check();
}

auto TooDeep() { return StatusIs(kFailed, HasSubstr("levels together, more than 1024")); }

std::string Function(const std::string& name, const std::string& returned) {
  return absl::StrCat("def ", name, "(x: Tensor) -> Tensor:\n  return ", returned, "\n");
}

std::string Name(const std::string& letter, size_t i) {
  return absl::StrCat("__torch__.a.", letter, i);
}

// Functions f0, f1…, of which each calls the next.
std::string Functions(size_t count, const std::string& last = "x") {
  std::string source;
  for (size_t i = 0; i < count; ++i) {
    source += Function(absl::StrCat("f", i), i + 1 < count ? Name("f", i + 1) + "(x)" : last);
  }
  return source;
}

// Classes of which each has `before`, the name of the next, and `after` in it.
std::string Chain(const std::string& before, const std::string& after,
                  const std::string& base = "(Module)") {
  std::string source;
  for (size_t i = 0; i < kMany; ++i) {
    absl::StrAppend(&source, "class C", i, base, ":\n  ", before, Name("C", i + 1), after, "\n");
  }
  return source;
}

TEST(DefinitionChainTest, FunctionsThatCallEachOtherAddUp) {
  constexpr size_t kCount = kMostChainDepth / kLevels;
  EXPECT_THAT(Check({{kFile, Functions(kCount)}}), IsOk());
  // The last one's block, `return`, signs and x take the levels that are left.
  const std::string signs(kMostChainDepth - (kCount - 1) * kLevels - 3, '-');
  EXPECT_THAT(Check({{kFile, Functions(kCount, signs + "x")}}), IsOk());
  EXPECT_THAT(Check({{kFile, Functions(kCount, signs + "-x")}}),
              StatusIs(kFailed,
                       "definitions that name each other, from __torch__.a.f0 on, nest 1025 "
                       "levels together, more than 1024"));
}

TEST(DefinitionChainTest, ItDoesNotMatterHowTheyNameEachOther) {
  const Files chains = {
      {"attributes", Chain("a : ", "")},
      {"lists", Chain("a : List[Optional[", "]]")},
      {"no modules", Chain("a : ", "", "")},
      {"named tuples", Chain("a : ", "", "(NamedTuple)")},
      {"odd attributes", Chain("__annotations__[\"0\"] = ", "")},
      {"constants", Chain("a : Final[int] = ", "()")},
      {"arguments", Chain("def m(self, x: ", ") -> int:\n    return 1")},
      {"interfaces", Chain("def m(self) -> ", ":\n    pass", "(Interface)")},
      {"defaults", Chain("def m(self, x: int=", "()) -> int:\n    return 1")},
      {"bodies", Chain("def m(self) -> int:\n    y = ", "()\n    return 1")},
      {"methods of others", Chain("def m(self) -> int:\n    y = ", ".make(1)\n    return 1")},
      {"bases", Chain("a : int\n  b : ", "", "(__torch__.a.C0)")},
      {"decorators", Chain("@", "\n  def m(self) -> int:\n    return 1")},
      {"type comments", Chain("def m(self, x):\n    # type: (", ") -> int\n    return 1")},
      {"strings", Chain("a : '", "'")},
      {"blocks", Chain("def m(self) -> int:\n    if 1:\n      y = ", "()\n    return 1")},
  };
  for (const auto& [kind, source] : chains) {
    EXPECT_THAT(Check({{kFile, source}}), TooDeep()) << kind;
  }
}

TEST(DefinitionChainTest, StringsAreWhatTheyStandFor) {
  std::string parts;
  std::string octal;
  for (size_t i = 0; i < kMany; ++i) {
    absl::StrAppend(&parts, "class C", i, ":\n  x : '__tor' \"ch__.\" '''a.C", i + 1, "'''\n");
    absl::StrAppend(&octal, "class C", i, ":\n  x : '\\137_torch__\\056a.C", i + 1, "'\n");
  }
  EXPECT_THAT(Check({{kFile, parts}}), TooDeep());
  EXPECT_THAT(Check({{kFile, octal}}), TooDeep());
}

TEST(DefinitionChainTest, MethodsOfAClassAddUp) {
  std::string source = "class C(Module):\n  a : int\n";
  for (size_t i = 0; i < kMany; ++i) {
    absl::StrAppend(&source, "  def m", i, "(self) -> int:\n    return (self).m", i + 1, "()\n");
  }
  EXPECT_THAT(Check({{kFile, source}}), TooDeep());
}

// As those that a module exports for who calls it from outside.
TEST(DefinitionChainTest, MethodsThatNobodyCallsDoNot) {
  std::string source = "class C(Module):\n  a : int\n";
  for (size_t i = 0; i < kMany; ++i) {
    absl::StrAppend(&source, "  def m", i, "(self) -> int:\n    return (self).forward()\n");
  }
  EXPECT_THAT(Check({{kFile, source}}), IsOk());
  std::string called;
  std::string quoted;
  for (size_t i = 0; i < kMany; ++i) {
    absl::StrAppend(&called, "    x = (y).m", i, "(x)\n");
    absl::StrAppend(&quoted, "    x = getattr(y, 'm", i, "')(x)\n");
  }
  for (const std::string& calls : {called, quoted}) {
    const std::string other = absl::StrCat("def f(x: int) -> int:\n", calls, "    return x\n");
    EXPECT_THAT(Check({{kFile, source}, {"code/__torch__/b.py", other}}), TooDeep());
  }
}

TEST(DefinitionChainTest, MethodsThatOperatorsCallAddUp) {
  std::string source = "class C(Module):\n  a : int\n";
  for (size_t i = 0; i < kMany; ++i) {
    absl::StrAppend(&source, "  def __m", i, "__(self) -> int:\n    return (self) + 1\n");
  }
  EXPECT_THAT(Check({{kFile, source}}), TooDeep());
}

TEST(DefinitionChainTest, WhatIsWideButNotDeepIsWell) {
  std::string all = "class All(Module):\n";
  std::string source;
  for (size_t i = 0; i < 10 * kMany; ++i) {
    absl::StrAppend(&all, "  c", i, " : ", Name("C", i), "\n");
    absl::StrAppend(&source, "class C", i, "(Module):\n  a : Tensor\n",
                    "  def forward(self: ", Name("C", i),
                    ", x: Tensor) -> Tensor:\n    return __torch__.a.f(x)\n");
  }
  EXPECT_THAT(Check({{kFile, source + all + Function("f", "torch.neg(x)")}}), IsOk());
}

TEST(DefinitionChainTest, AClassMayNameItself) {
  std::string source = "class C(Module):\n  a : int\n";
  for (size_t i = 0; i < 40; ++i) {
    absl::StrAppend(&source, "  def m", i, "(self: __torch__.a.C) -> __torch__.a.C:\n",
                    "    return self\n");
  }
  EXPECT_THAT(Check({{kFile, source}}), IsOk());
  EXPECT_THAT(Check({{kFile, Function("f", "__torch__.a.f(x)")}}), IsOk());
}

TEST(DefinitionChainTest, WhatNamesEachOtherCountsAsAWhole) {
  const auto circle = [](size_t count) {
    std::string source = Functions(count - 1, Name("f", count - 1) + "(x)");
    return source + Function(absl::StrCat("f", count - 1), "__torch__.a.f0(x)");
  };
  EXPECT_THAT(Check({{kFile, circle(2)}}), IsOk());
  EXPECT_THAT(Check({{kFile, circle(100)}}), IsOk());
  EXPECT_THAT(Check({{kFile, circle(kMany)}}), TooDeep());
}

TEST(DefinitionChainTest, FilesMayComeInAnyOrder) {
  for (const bool backwards : {false, true}) {
    Files files;
    const auto record = [&](size_t i) { return 1000 + (backwards ? kMany - i : i); };
    for (size_t i = 0; i < kMany; ++i) {
      files[absl::StrCat("CODE/__torch__/b", record(i), ".PY")] =
          Function("f", absl::StrCat("__torch__.b", record(i + 1), ".f(x)"));
    }
    EXPECT_THAT(Check(files), TooDeep());
  }
}

TEST(DefinitionChainTest, ANameMayBePartOfAnother) {
  // What f0.f0 is, an attribute or in a module of its own, only LibTorch finds out.
  const std::string both = Functions(100) + Function("g", "__torch__.a.f0.f0(x)");
  const std::string other = "code/__torch__/a/f0.py";
  EXPECT_THAT(Check({{kFile, both}, {other, Function("f0", "x")}}), IsOk());
  EXPECT_THAT(Check({{kFile, both}, {other, Function("f0", "__torch__.a.g(x)")}}), IsOk());
  EXPECT_THAT(Check({{kFile, Function("g", "__torch__.a.f0.f0(x)")}, {other, Functions(kMany)}}),
              IsOk());
  // What only begins as a name does is none.
  std::string longer;
  for (size_t i = 0; i < kMany; ++i) {
    longer += Function(absl::StrCat("g", i), absl::StrCat("__torch__.a.g", i + 1, "x(x)"));
    longer += Function(absl::StrCat("h", i), absl::StrCat("__torch__x.a.h", i + 1, "(x)"));
    longer += Function(absl::StrCat("i", i), absl::StrCat("x.__torch__.a.i", i + 1, "(x)"));
  }
  EXPECT_THAT(Check({{kFile, longer}}), IsOk());
}

TEST(DefinitionChainTest, FilesMayBeNamedAsNoIdentifierIs) {
  std::string source;
  for (size_t i = 0; i < kMany; ++i) {
    absl::StrAppend(&source, "class C", i, ":\n  c : __torch__.my-net.C", i + 1, "\n");
  }
  EXPECT_THAT(Check({{"code/__torch__/my-net.py", source}}), TooDeep());
  EXPECT_THAT(Check({{"code/__torch__/my.py", source}}), IsOk());
}

TEST(DefinitionChainTest, WhatLibTorchTakesForNoNameIsNone) {
  std::string source;
  for (size_t i = 0; i < kMany; ++i) {
    source += Function(absl::StrCat("f", i), absl::StrCat("x # ", Name("f", i + 1), "(x)"));
  }
  EXPECT_THAT(Check({{kFile, source}}), IsOk());
}

TEST(DefinitionChainTest, NamesThatHideDefinitionsAreRefused) {
  const auto check = [](const std::string& type) {
    return Check({{kFile, "class C:\n  a : int\n"},
                  {"code/__torch__.py", absl::StrCat("class D:\n  c : ", type, "\n")},
                  {"code/foo/b.py", "class C:\n  a : int\n"}});
  };
  EXPECT_THAT(check("__torch__.a.C"), IsOk());
  EXPECT_THAT(check("foo.b.C"), IsOk());
  EXPECT_THAT(check("__torch__.torch.classes.a.C"), IsOk());
  for (const std::string other : {"__torch__.A.C", "__Torch__.a.C", "__torch__/a.C",
                                  "'__torch__/a.C'", "foo/b.C", "FOO.b.C"}) {
    EXPECT_THAT(check(other), StatusIs(kFailed, AllOf(HasSubstr("__torch__.D names "),
                                                      HasSubstr(".C in another way"))))
        << other;
  }
  for (const std::string module :
       {"__torch__", "(__torch__).a.C", "__torch__ .a.C", "__torch__. a.C", "(__torch__.a).C",
        "__torch__.a\\\n    .C", "foo . b.C", "getattr(__torch__, 'a')"}) {
    EXPECT_THAT(check(module),
                StatusIs(kFailed, "__torch__.D names a module without what it uses of it"))
        << module;
  }
}

// nets/UNet.py and nets/unet/blocks.py, Models/a.py and models/b.py.
TEST(DefinitionChainTest, FoldersMayDifferFromOthersInTheCaseOfLetters) {
  const std::string source = "class C:\n  a : int\n";
  const std::string both = "class D:\n  c : __torch__.nets.UNet.C\n  d : __torch__.nets.unet.b.C\n";
  EXPECT_THAT(Check({{"code/__torch__/nets/UNet.py", source},
                     {"code/__torch__/nets/unet/b.py", source},
                     {"code/__torch__.py", both}}),
              IsOk());
  EXPECT_THAT(Check({{"code/__torch__/Models/a.py", source},
                     {"code/__torch__/models/b.py", "class D:\n  c : __torch__.Models.a.C\n"},
                     {"code/__torch__.py", "class E:\n  d : __torch__.models.b.D\n"}}),
              IsOk());
  EXPECT_THAT(Check({{"code/__torch__/Models/a.py", source},
                     {"code/__torch__/models/b.py", "class D:\n  c : __torch__.models.a.C\n"}}),
              StatusIs(kFailed, HasSubstr("names __torch__.Models.a.C in another way")));
}

// There are a class __torch__.a.B and a file of the module __torch__.a.b.
TEST(DefinitionChainTest, AClassMayBeCalledAsAModule) {
  const auto check = [](const std::string& type) {
    return Check({{kFile, absl::StrCat("class B:\n  a : int\nclass C:\n  b : ", type, "\n")},
                  {"code/__torch__/a/b.py", "class D:\n  a : int\n"}});
  };
  EXPECT_THAT(check("__torch__.a.B"), IsOk());
  EXPECT_THAT(check("Tuple[(__torch__.a.B), __torch__.a.b.D]"), IsOk());
  for (const std::string hidden : {"__torch__.a.B .D", "__torch__.a.B. D", "((__torch__.a.B)).D"}) {
    EXPECT_THAT(check(hidden), StatusIs(kFailed, HasSubstr("__torch__.a.C names a module")))
        << hidden;
  }
}

TEST(DefinitionChainTest, FilesThatAreNamedAsNoModuleAreRefused) {
  for (const std::string record :
       {"code/.py", "code//a.py", "code/__torch__/.py", "code/__torch__/a b.py", "code/1.py",
        "code/a-b.py", "code/__torch__/a.b.py", "code/__torch__/\xc3\xa4.py"}) {
    EXPECT_THAT(Check({{record, ""}}),
                StatusIs(kFailed, record + " is not named as a module of Python is"));
  }
  EXPECT_THAT(Check({{absl::StrCat("code/", std::string(2000, 'a'), ".py"), ""}}),
              StatusIs(kFailed, HasSubstr("is not named")));
}

TEST(DefinitionChainTest, WhatNestsByItselfIsRefusedByItsFile) {
  const std::string deep = Function("f", std::string(600, '-') + "x");
  EXPECT_THAT(Check({{kFile, deep}}),
              StatusIs(kFailed, "code/__torch__/a.py nests more than 512 levels in line 2"));
}

TEST(DefinitionChainTest, WhatIsNoCodeIsLeftToLibTorch) {
  for (const std::string source :
       {"", ")", "class", "class C", "class C:", "def f", "class C:\n  def", "'", "'\\x41'\n",
        "__torch__", "def f(x):\n  return '\\x41' __torch__.a.f", "  class C:\n x\n"}) {
    EXPECT_THAT(Check({{kFile, source}}), IsOk()) << source;
  }
}

}  // namespace
}  // namespace braid
