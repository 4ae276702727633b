// GET /v1/models (api.md 3.9).
#include "serve/api/json_body.h"
#include "serve/handlers.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

Json reasoning_block(const ServedModel& model) {
  Json block = {{"default_enabled", model.thinking_default}};
  if (model.effort_default) block["default_effort"] = *model.effort_default;
  if (!model.prompts->facts().effort_levels.empty()) {
    Json levels = model.prompts->facts().effort_levels;
    levels.push_back("none");
    block["supported_efforts"] = std::move(levels);
  }
  return block;
}

}  // namespace

HttpResponse handle_models(const ServedModel& model) {
  Json data = Json::array();
  for (const std::string& name : model.names) {
    Json entry = {{"id", name},
                  {"object", "model"},
                  {"created", model.created_unix_seconds},
                  {"owned_by", "tensorfold"},
                  {"context_length", model.engine->facts().context},
                  {"max_model_len", model.engine->facts().context}};
    if (model.prompts && model.prompts->facts().has_thinking_switch) entry["reasoning"] = reasoning_block(model);
    data.push_back(std::move(entry));
  }
  HttpResponse response;
  response.body = dump_json({{"object", "list"}, {"data", std::move(data)}});
  return response;
}

}  // namespace tensorfold
