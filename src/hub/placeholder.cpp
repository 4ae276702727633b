// Placeholder so that the room builds before its first file lands; deleted with it.
namespace tensorfold {
extern const int room_hub_placeholder;
const int room_hub_placeholder = 0;
}
