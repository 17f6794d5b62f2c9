-- What templates may call, apart from Lua's own string, table and math. Everything here is a pure function: the same arguments
-- give the same text in any process. Errors carry no position: gen.c adds the template's line.
local helpers = {}
local format, type, math_type = string.format, type, math.type
local ipairs, next, raise, sort = ipairs, next, error, table.sort
local pack, unpack = string.pack, string.unpack

local function fail(message, ...)
  raise(format(message, ...), 0)
end

local function check_integer(name, value, least)
  if math_type(value) ~= "integer" then fail("%s: found a %s, allowed an integer", name, math_type(value) or type(value)) end
  if value < least then fail("%s: found %d, allowed %d or more", name, value, least) end
end

-- ---- checks --------------------------------------------------------------------------------------------------

function helpers.assert(condition, message)
  if not condition then fail("%s", type(message) == "string" and message or "assertion failed") end
  return condition
end

function helpers.error(message)
  fail("%s", type(message) == "string" and message or "error")
end

-- Lua's own would print the address of a table or a function.
function helpers.tostring(value)
  local kind = type(value)
  if kind ~= "string" and kind ~= "number" and kind ~= "boolean" then fail("tostring: found a %s", kind) end
  return format("%s", value)
end

-- ---- numbers -------------------------------------------------------------------------------------------------

-- A C literal of type float that reads back as the same float: 0.125 -> "0.125f".
function helpers.float(value)
  if type(value) ~= "number" then fail("float: found a %s, allowed a number", type(value)) end
  if value ~= value or value < -0x1.fffffep127 or value > 0x1.fffffep127 then fail("float: %g is out of range", value) end
  local text = format("%.9g", (unpack("f", pack("f", value))))
  return text .. (text:find("[.e]") and "f" or ".0f")
end

-- a / b, rounded up.
function helpers.div_up(a, b)
  check_integer("div_up", a, 0)
  check_integer("div_up", b, 1)
  return (a + b - 1) // b
end

-- The next multiple of b.
function helpers.round_up(a, b)
  return helpers.div_up(a, b) * b
end

function helpers.is_power_of_two(n)
  return math_type(n) == "integer" and n > 0 and n & (n - 1) == 0
end

-- Of a power of two.
function helpers.log2(n)
  if not helpers.is_power_of_two(n) then fail("log2: a power of two is needed") end
  local bits = 0
  while n >> bits > 1 do bits = bits + 1 end
  return bits
end

-- ---- lists ---------------------------------------------------------------------------------------------------

-- list(3, function(i) return "d" .. i end) -> "d0, d1, d2". A text in place of the function has its # replaced by the number.
function helpers.list(count, item, separator)
  check_integer("list", count, 0)
  local items = {}
  for i = 0, count - 1 do
    local text = type(item) == "string" and item:gsub("#", format("%d", i)) or item(i)
    local kind = math_type(text) or type(text)
    if kind ~= "string" and kind ~= "integer" then fail("list: item %d is a %s, allowed strings and integers", i, kind) end
    items[i + 1] = text
  end
  return table.concat(items, separator or ", ")
end

-- A sorted copy; all strings or all integers, since only equal values of one kind look alike wherever they land.
function helpers.sorted(values)
  local copy = {}
  for i, value in ipairs(values) do
    local kind = math_type(value) or type(value)
    if kind ~= "integer" and kind ~= "string" then fail("sorted: found a %s, allowed strings or integers", kind) end
    if i > 1 and type(value) ~= type(copy[1]) then fail("sorted: strings and integers mixed") end
    copy[i] = value
  end
  sort(copy)
  return copy
end

-- In place of pairs, whose order changes from run to run: `for key, value in sorted_pairs(t)`.
function helpers.sorted_pairs(values)
  local keys, i = {}, 0
  for key in next, values do keys[#keys + 1] = key end
  keys = helpers.sorted(keys)
  return function()
    i = i + 1
    return keys[i], values[keys[i]]
  end
end

return helpers
