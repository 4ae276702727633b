// What drafting with one source has cost and brought, in seconds, against what it may cost. Where drafts pay, the account
// is full and nothing asks for it. Where they don't, every miss, and every row that a source is merely shown, is paid
// from a small share of the time that passes take; when that is spent, the source isn't tried until it has grown again.
// So the estimates of a stream may be wrong and the share still holds. Decides time only, never tokens.
#pragma once

#include <algorithm>
#include <limits>

namespace tensorfold {

class DraftAccount {
 public:
  static constexpr double kShare = 0.004;  // of a pass's time, for each source that runs a model
  static constexpr double kMost = 16.0;    // plain passes: how soon a change for the worse is noticed
  static constexpr double kDebt = 4.0;     // plain passes: what one stream lost is not held against all others for ever

  DraftAccount() = default;  // full

  /// A plain pass takes `pass_seconds`, of which `seconds` are the stream's, or those of all that share the account.
  void earn(double seconds, double pass_seconds) {
    if (seconds <= 0.0) return;  // not measured yet
    pass_seconds_ = pass_seconds;
    add(kShare * seconds);
  }
  /// Seconds that drafting took beyond what it saved; negative: it saved more.
  void charge(double seconds) { add(-seconds); }
  double balance() const { return balance_; }
  double most_seconds() const { return kMost * pass_seconds_; }

 private:
  void add(double seconds) { balance_ = std::clamp(balance_ + seconds, -kDebt * pass_seconds_, most_seconds()); }

  double balance_ = std::numeric_limits<double>::infinity();
  double pass_seconds_ = std::numeric_limits<double>::infinity();  // unknown until a pass was measured
};

}  // namespace tensorfold
