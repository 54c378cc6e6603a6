#include "core/tokenizer/bpe_model.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "core/base/error.h"

namespace megalith {

namespace {

constexpr std::uint64_t kNoPair = std::numeric_limits<std::uint64_t>::max();
constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kShortWord = 64;  // bytes up to which a scan of all pairs is faster than a heap
constexpr std::size_t kMaxLongWord = std::numeric_limits<std::uint32_t>::max();

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::uint64_t mix(std::uint64_t key) {
  key *= 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, as in Knuth's multiplicative hashing
  return key ^ key >> 32;
}

// Returns a hash of everything that ids depend on.
std::string identity_of(const BpeVocabulary& vocabulary, std::int64_t vocab_size) {
  std::string all = fmt::format("{} {:d} {:d} {:d} {} ", to_string(vocabulary.pattern), vocabulary.nfc,
                                vocabulary.prefix_space, vocabulary.whole_words, vocabulary.eod);
  auto tokens = vocabulary.tokens;
  std::ranges::sort(tokens, {}, &std::pair<std::string, std::int32_t>::second);
  for (const auto& [bytes, id] : tokens) all += fmt::format("{} {}:{} ", id, bytes.size(), bytes);
  for (const auto& merge : vocabulary.merges) {
    all += fmt::format("{}: {}+{}={} ", merge.rank, merge.left, merge.right, merge.merged);
  }
  for (const AddedToken& token : vocabulary.added) {
    all += fmt::format("{} {:d} {}:{} ", token.id, token.normalized, token.text.size(), token.text);
  }
  return fmt::format("bpe-{}-{}-{:016x}", to_string(vocabulary.pattern), vocab_size,
                     XXH3_64bits(all.data(), all.size()));
}

}  // namespace

BpeModel::BpeModel(BpeVocabulary vocabulary)
    : scanner_(vocabulary.pattern),
      prefix_space_(vocabulary.prefix_space),
      byte_ids_(vocabulary.byte_ids),
      eod_(vocabulary.eod),
      bos_(vocabulary.bos) {
  if (vocabulary.nfc) nfc_.emplace();
  for (AddedToken& token : vocabulary.added) {
    if (token.normalized && nfc_) {
      std::string text;
      nfc_->append(text, token.text);
      token.text = std::move(text);
    }
  }
  build_texts(vocabulary);
  build_pairs(vocabulary.merges);
  identity_ = identity_of(vocabulary, vocab_size_);
  std::vector<std::pair<std::string, std::int32_t>> added;
  std::vector<std::pair<std::string, std::int32_t>> added_normalized;
  for (AddedToken& token : vocabulary.added) {
    (token.normalized ? added_normalized : added).emplace_back(std::move(token.text), token.id);
  }
  added_ = AddedTokenFinder(std::move(added));
  added_normalized_ = AddedTokenFinder(std::move(added_normalized));
  if (vocabulary.whole_words) build_words(vocabulary);
}

void BpeModel::build_words(BpeVocabulary& vocabulary) {
  std::ranges::sort(vocabulary.opaque);
  whole_words_.assign(std::bit_ceil(2 * vocabulary.tokens.size() + 2), {.hash = 0, .id = -1});
  const std::size_t last = whole_words_.size() - 1;
  for (const auto& [bytes, id] : vocabulary.tokens) {
    if (std::ranges::binary_search(vocabulary.opaque, id)) continue;
    const std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
    std::size_t place = hash & last;
    while (whole_words_[place].id >= 0 && text_of(whole_words_[place].id) != bytes) place = (place + 1) & last;
    whole_words_[place] = {.hash = static_cast<std::uint32_t>(hash >> 32), .id = id};
  }
}

std::optional<std::int32_t> BpeModel::find_word(std::string_view word) const {
  const std::uint64_t hash = XXH3_64bits(word.data(), word.size());
  const std::size_t last = whole_words_.size() - 1;
  for (std::size_t place = hash & last; whole_words_[place].id >= 0; place = (place + 1) & last) {
    const WholeWord& found = whole_words_[place];
    if (found.hash == static_cast<std::uint32_t>(hash >> 32) && text_of(found.id) == word) return found.id;
  }
  return std::nullopt;
}

void BpeModel::build_texts(const BpeVocabulary& vocabulary) {
  std::vector<std::pair<std::int32_t, std::string_view>> by_id;
  for (const auto& [bytes, id] : vocabulary.tokens) by_id.emplace_back(id, bytes);
  for (const AddedToken& token : vocabulary.added) by_id.emplace_back(token.id, token.text);
  std::ranges::stable_sort(by_id, {}, &std::pair<std::int32_t, std::string_view>::first);
  std::int32_t last = -1;
  for (const auto& [id, bytes] : by_id) {
    if (id == last) continue;  // an added token that is also in the vocabulary
    text_begin_.resize(static_cast<std::size_t>(id) + 1, static_cast<std::uint32_t>(texts_.size()));
    texts_ += bytes;
    last = id;
  }
  vocab_size_ = std::int64_t{std::max(last, eod_)} + 1;
  text_begin_.resize(static_cast<std::size_t>(vocab_size_) + 1, static_cast<std::uint32_t>(texts_.size()));
}

std::size_t BpeModel::bytes_of(std::int32_t id) const {
  const auto i = static_cast<std::size_t>(id);
  return text_begin_[i + 1] - text_begin_[i];
}

std::string_view BpeModel::text_of(std::int32_t id) const {
  return std::string_view(texts_).substr(text_begin_[static_cast<std::size_t>(id)], bytes_of(id));
}

void BpeModel::build_pairs(const std::vector<BpeVocabulary::Merge>& merges) {
  const std::size_t places = std::bit_ceil(2 * merges.size() + 2);
  pairs_.assign(places, {.key = kNoPair, .rank = kNoRank, .merged = -1});
  pairs_shift_ = static_cast<unsigned>(64 - std::countr_zero(places));
  for (const BpeVocabulary::Merge& merge : merges) {
    // Other merges involve opaque tokens, which no word contains.
    if (bytes_of(merge.left) + bytes_of(merge.right) != bytes_of(merge.merged)) continue;
    const std::uint64_t key = pair_key(merge.left, merge.right);
    std::size_t place = mix(key) >> pairs_shift_;
    while (pairs_[place].key != kNoPair && pairs_[place].key != key) place = (place + 1) & (places - 1);
    pairs_[place] = {.key = key, .rank = merge.rank, .merged = merge.merged};
  }
}

inline const BpeModel::Pair* BpeModel::find_pair(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t place = mix(key) >> pairs_shift_;
  while (pairs_[place].key != key) {
    if (pairs_[place].key == kNoPair) return nullptr;
    place = (place + 1) & (pairs_.size() - 1);
  }
  return &pairs_[place];
}

void BpeModel::encode(std::string_view text, std::vector<std::int32_t>& ids, WordCache& cache,
                      BorderIds& borders) const {
  const auto encode_part = [&](std::string_view part) {
    const auto begin = static_cast<std::size_t>(part.data() - text.data());
    borders.reach(begin, ids.size());
    encode_normalized(part, begin, {ids, cache, borders});
  };
  added_.cut(text, encode_part, [&](std::int32_t id, std::size_t begin) {
    borders.reach(begin, ids.size());
    ids.push_back(id);
  });
  borders.reach(text.size(), ids.size());
}

void BpeModel::encode_normalized(std::string_view part, std::size_t begin, const Encoding& to) const {
  std::string normalized;
  std::optional<std::size_t> origin = begin;
  if (nfc_ && !NfcNormalizer::keeps(part)) {
    nfc_->append(normalized, part);
    if (normalized != part) origin.reset();
    part = normalized;
  }
  const auto reach = [&](std::size_t byte) {
    if (origin) to.borders.reach(*origin + byte, to.ids.size());
  };
  const auto encode_piece = [&](std::string_view piece) {
    const auto at = static_cast<std::size_t>(piece.data() - part.data());
    reach(at);
    if (prefix_space_ && piece.front() != ' ') return encode_words(' ' + std::string(piece), {}, to);
    encode_words(piece, origin ? std::optional(*origin + at) : std::nullopt, to);
  };
  added_normalized_.cut(part, encode_piece, [&](std::int32_t id, std::size_t at) {
    reach(at);
    to.ids.push_back(id);
  });
}

void BpeModel::encode_words(std::string_view part, std::optional<std::size_t> begin, const Encoding& to) const {
  struct Word {
    std::size_t begin;
    std::size_t end;
    WordCache::Key key;
    WordCache::Entry* entry;  // null: too long
  };
  constexpr std::size_t kWords = 32;  // whose entries are fetched from memory at the same time
  std::array<Word, kWords> words;
  for (std::size_t at = 0; at < part.size();) {
    std::size_t count = 0;
    for (; count < kWords && at < part.size(); ++count) {
      Word& word = words[count];
      word = {.begin = at, .end = scanner_.next(part, at), .key = {}, .entry = nullptr};
      at = word.end;
      if (word.end - word.begin > WordCache::kMaxBytes) continue;
      word.key = WordCache::key_of(part, word.begin, word.end - word.begin);
      word.entry = &to.cache.entry_for(word.key);
      __builtin_prefetch(word.entry);
    }
    for (const Word& word : std::span(words).first(count)) {
      if (begin) to.borders.reach(*begin + word.begin, to.ids.size());
      const std::string_view text = part.substr(word.begin, word.end - word.begin);
      if (word.entry == nullptr) {
        encode_word(text, to.ids);
      } else {
        encode_cached(text, word.key, *word.entry, to.ids);
      }
    }
  }
}

inline void BpeModel::encode_cached(std::string_view word, const WordCache::Key& key, WordCache::Entry& entry,
                                    std::vector<std::int32_t>& ids) const {
  if (entry.has(key)) {
    if (entry.count == 1) return ids.push_back(entry.ids[0]);
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const std::size_t before = ids.size();
  encode_word(word, ids);
  const std::size_t count = ids.size() - before;
  if (count > WordCache::kMaxIds) return;
  entry = {.key = key, .count = static_cast<std::uint32_t>(count), .ids = {}};
  std::copy_n(ids.end() - static_cast<std::ptrdiff_t>(count), count, entry.ids.begin());
}

void BpeModel::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (!whole_words_.empty() && word.size() <= kMaxTokenBytes) {
    if (const std::optional<std::int32_t> id = find_word(word)) return ids.push_back(*id);
  }
  if (word.size() <= kShortWord) return merge_short(word, ids);
  merge_long(word, ids);
}

void BpeModel::merge_short(std::string_view word, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, kShortWord> symbols;
  std::array<const Pair*, kShortWord> pairs;  // [i]: pair of symbols i and i + 1
  std::size_t count = word.size();
  for (std::size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(word[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = find_pair(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = count;
    std::int32_t best_rank = kNoRank;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i] == nullptr || pairs[i]->rank >= best_rank) continue;
      best = i;
      best_rank = pairs[i]->rank;
    }
    if (best == count) break;
    symbols[best] = pairs[best]->merged;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (best > 0) pairs[best - 1] = find_pair(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = find_pair(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count));
}

// Merge state of a long word: 4 bytes and a bit per byte of the word for symbols, and 9 bytes for the heap.
struct BpeModel::LongWord {
  const BpeModel& model;
  std::vector<std::int32_t> symbols;  // stored at the first and last byte, where neighbors read it
  std::vector<bool> begins;           // whether a symbol begins here
  std::vector<std::uint64_t> heap;    // pairs as rank << 32 | place, the least on top

  LongWord(const BpeModel& bpe, std::string_view word) : model(bpe), symbols(word.size()), begins(word.size(), true) {
    heap.reserve(most() + 2);
    std::ranges::transform(word, symbols.begin(),
                           [&](char c) { return model.byte_ids_[static_cast<unsigned char>(c)]; });
    for (std::size_t at = 0; at < word.size(); ++at) {
      if (const Pair* pair = pair_at(at); pair != nullptr) heap.push_back(key_of(*pair, at));
    }
    std::ranges::make_heap(heap, std::greater<>());
  }

  std::size_t most() const { return symbols.size() + symbols.size() / 8; }
  std::size_t after(std::size_t at) const { return at + model.bytes_of(symbols[at]); }
  static std::uint64_t key_of(const Pair& pair, std::size_t at) {
    return std::uint64_t{static_cast<std::uint32_t>(pair.rank)} << 32 | at;
  }
  // Returns the pair of the symbol at `at` and the next symbol.
  const Pair* pair_at(std::size_t at) const {
    const std::size_t next = after(at);
    return next < symbols.size() ? model.find_pair(symbols[at], symbols[next]) : nullptr;
  }
  // Returns the pair that a key was made for; null if one of its symbols has been merged since.
  const Pair* pair_of(std::uint64_t key) const {
    const auto at = static_cast<std::uint32_t>(key);
    const Pair* pair = begins[at] ? pair_at(at) : nullptr;
    return pair != nullptr && key_of(*pair, at) == key ? pair : nullptr;
  }
  void push(std::size_t at) {
    const Pair* pair = pair_at(at);
    if (pair == nullptr) return;
    heap.push_back(key_of(*pair, at));
    std::ranges::push_heap(heap, std::greater<>());
    if (heap.size() <= most()) return;
    // Each symbol has at most one valid key, so the heap is purged only a few times.
    std::erase_if(heap, [&](std::uint64_t key) { return pair_of(key) == nullptr; });
    std::ranges::make_heap(heap, std::greater<>());
  }
  void merge_all() {
    while (!heap.empty()) {
      std::ranges::pop_heap(heap, std::greater<>());
      const std::uint64_t key = heap.back();
      heap.pop_back();
      const Pair* pair = pair_of(key);
      if (pair == nullptr) continue;
      const auto at = static_cast<std::uint32_t>(key);
      begins[after(at)] = false;
      symbols[at] = pair->merged;
      symbols[after(at) - 1] = pair->merged;
      if (at > 0) push(at - model.bytes_of(symbols[at - 1]));
      push(at);
    }
    heap = {};
  }
};

void BpeModel::merge_long(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (word.size() > kMaxLongWord) {
    refuse_format("text", fmt::format("words of at most {} bytes", kMaxLongWord), fmt::format("one of {}", word.size()),
                  "it is no prose: leave it out, or cut it");
  }
  LongWord symbols(*this, word);
  symbols.merge_all();
  const auto count = static_cast<std::size_t>(std::ranges::count(symbols.begins, true));
  if (ids.size() + count > ids.capacity()) ids.reserve(std::max(ids.size() + count, 2 * ids.capacity()));
  for (std::size_t at = 0; at < word.size(); at = symbols.after(at)) ids.push_back(symbols.symbols[at]);
}

void BpeModel::decode(std::span<const std::int32_t> ids, std::string& text) const {
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size_ || id == eod_) continue;
    text.append(texts_, text_begin_[static_cast<std::size_t>(id)], bytes_of(id));
  }
}

}  // namespace megalith
