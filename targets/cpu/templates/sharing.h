// How many of a pool's threads make a small step: all of them, or half, of which each does the shares of two.
//
// Threads that meet at a barrier after every op are as slow as the one that other programs keep from its core, time slice after time slice. Where
// most of a step is such waiting, half of the threads are tried, and whichever took less is kept for a while, twice as long every time that it
// proves right. Shares are cut for all threads in either case, so results are the same to the last bit.
#pragma once
#include <stdint.h>

namespace mp {

// Nanoseconds that a way is judged by: longer than a hiccup. Lost ones that suffice, and that do where the same was seen just before.
constexpr int64_t kSharingWindow = 60000000, kSharingLost = 30000000, kSharingAgain = 8000000;
constexpr int64_t kSharingLeast = 100000000, kSharingMost = INT64_C(1600000000);  // how long a choice is kept
constexpr int64_t kSmallStep = 32;                                                // tokens

struct Sharing {
  bool half, judging;     // what the next small step does; whether half of the threads are on trial
  bool again;             // whether all threads are tried once more
  int64_t tokens;         // of the steps in the window
  int64_t steps, spent, lost;  // in the window; nanoseconds
  int64_t whole_step;     // nanoseconds of a step by all threads, when they were last given up
  int64_t until, keep;    // when the other way may be tried again, and for how long the next choice is kept
};

static void sharing_window(Sharing* s) { s->steps = s->spent = s->lost = 0; }

static void sharing_keep(Sharing* s, int64_t now) {
  s->until = now + s->keep;
  s->keep = s->keep * 2 < kSharingMost ? s->keep * 2 : kSharingMost;
}

// After a small step that took `spent` nanoseconds until `now`, `lost` of them in waits that no sound barrier takes.
static void sharing_learn(Sharing* s, int64_t tokens, int64_t now, int64_t spent, int64_t lost) {
  if (!s->keep) s->keep = kSharingLeast;
  if (tokens != s->tokens) {
    s->tokens = tokens;
    s->half = s->judging = s->again = false;
    sharing_window(s);
  }
  s->steps++;
  s->spent += spent;
  s->lost += lost;
  if (!s->half) {
    const bool disturbed = s->lost * 5 > s->spent * 2;
    if (s->spent < kSharingWindow && !(disturbed && s->lost > (s->again ? kSharingAgain : kSharingLost))) return;
    s->again = false;
    if (!disturbed) {
      s->keep = kSharingLeast;
    } else if (now >= s->until) {
      s->whole_step = s->spent / s->steps;
      s->half = s->judging = true;
    }
    sharing_window(s);
  } else if (s->judging) {
    if (s->spent < kSharingWindow) return;
    s->half = s->spent / s->steps < s->whole_step;
    s->judging = false;
    sharing_keep(s, now);
    sharing_window(s);
  } else if (now >= s->until) {
    s->half = false;
    s->again = true;
    s->until = now;
    sharing_window(s);
  }
}

}  // namespace mp
