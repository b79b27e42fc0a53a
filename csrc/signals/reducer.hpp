// Attention weights of many heads, per token, reduced to few numbers per block of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace evoke {

// How a channel folds the heads that it takes part in.
enum class Fold : uint8_t {
  kMean,     // weighted by `weights`
  kMax,      // over heads with a weight above 0
  kLargest,  // mean of the `count` largest of them
};

struct Channel {
  Fold fold = Fold::kMean;
  size_t count = 1;
  std::vector<float> weights;  // layers x heads; 0: the head takes no part
};

enum class Element : uint8_t { kHalf, kFloat };

// Weights of one layer as an engine has them: heads x rows x tokens, strides in bytes, any sign.
struct LayerWeights {
  const char* at;
  Element element;
  size_t heads, rows, tokens;
  ptrdiff_t head_stride, row_stride, token_stride;
};

// A head's mass in a block is the sum of its weights over the block's tokens, mean over the rows
// (query tokens). Layers may come in any order, each once; a layer in which no channel takes part
// may be left out. One pass over the weights.
class Reducer {
 public:
  // Throws std::invalid_argument that names the field and its number.
  Reducer(size_t layers, size_t heads, size_t block_tokens, std::vector<Channel> channels);

  // Throws std::invalid_argument (layer, head, block and number); the layer counts as not added.
  void add(size_t layer, const LayerWeights& weights);
  size_t channels() const { return channels_.size(); }
  size_t blocks() const { return blocks_; }
  // Half floats, channel after channel, blocks() each; the next add() begins anew. Throws
  // std::invalid_argument: a layer is missing.
  std::vector<uint16_t> take();

 private:
  void begin(size_t tokens);
  bool takes_part(size_t layer, size_t head) const;
  void sum_blocks(const LayerWeights& weights, size_t head);
  void check(size_t layer, size_t head) const;
  void fold(size_t layer, size_t head);

  size_t layers_, heads_, block_tokens_;
  std::vector<Channel> channels_;
  std::vector<std::vector<float>> totals_;  // per channel: count x blocks, the largest first
  std::vector<float> mass_;                 // of one head
  std::vector<float> row_;                  // of tokens, where they are not contiguous floats
  std::vector<float> sinking_;              // of one head, while it finds its rank
  std::vector<float> pending_;              // of one layer: its heads' masses, checked first
  std::vector<uint8_t> added_;
  size_t tokens_ = 0;
  size_t blocks_ = 0;
};

}  // namespace evoke
