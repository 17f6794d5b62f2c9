-- A template becomes a Lua function, and the function the text. gen.c calls this file with
--   prelude  the text of prelude.lua
--   file     the template's name, "templates/NAME.cu.lua"
--   text     its bytes
--   params   name -> string or integer
-- and gets a function that runs the template. That one returns its lines, each as "NUMBER:LINE\n" with the number of the
-- template line that made it; gen.c adds includes and #line marks. The language is described in README.md.
--
-- The Lua that runs has the template's own line structure: a code line is itself, a text line is one statement on one line. So
-- Lua's messages name template lines. Errors raised here carry no position where the stack tells it: gen.c adds it.
local prelude, file, text, params = ...
local format, find, sub = string.format, string.find, string.sub
local helpers = assert(load(prelude, "@gen/prelude.lua", "t"))()

local function fail(message, ...)
  error(format(message, ...), 0)
end

local function fail_at(line, message, ...)
  error(format("%s:%d: ", file, line) .. format(message, ...), 0)
end

-- ---- text -> Lua ---------------------------------------------------------------------------------------------

-- `_ENV` would leave the strict names; a long bracket could swallow text lines unseen.
local function check_code(line, code)
  for _, name in ipairs{"_ENV", "__emit"} do
    if find(code, name, 1, true) then fail_at(line, "'%s' is not for templates", name) end
  end
  if find(code, "%[=*%[") then fail_at(line, "long brackets are not for templates") end
end

-- Position of the } that closes a hole whose expression starts at `at`, or nil. Braces may nest and stand in quotes.
local function hole_end(line, at)
  local depth, quote = 0, nil
  local i = at
  while i <= #line do
    local c = sub(line, i, i)
    if quote then
      if c == "\\" then i = i + 1 elseif c == quote then quote = nil end
    elseif c == '"' or c == "'" then
      quote = c
    elseif c == "{" then
      depth = depth + 1
    elseif c == "}" then
      if depth == 0 then return i end
      depth = depth - 1
    end
    i = i + 1
  end
end

-- Exactly one expression, which must stand with parentheses and without: "a, b" and "a) + (b" are not.
local function check_hole(line, expression)
  if not find(expression, "%S") then fail_at(line, "an empty hole") end
  check_code(line, expression)
  for _, code in ipairs{"return " .. expression, "return (" .. expression .. ")"} do
    local _, message = load(code, "=hole", "t")
    if message then fail_at(line, "${%s}: %s", expression, (message:gsub("^hole:%d+: ", ""))) end
  end
end

-- The expressions of the holes, by template line, for messages.
local holes = {}

-- The literals and holes of a text line in turn: always a literal first and last.
local function split_text(line, number)
  local parts, expressions, literal, at = {}, {}, "", 1
  while true do
    local hole = find(line, "${", at, true)
    if not hole then break end
    if sub(line, hole - 1, hole - 1) == "$" and hole > at then
      literal = literal .. sub(line, at, hole - 2) .. "${"
      at = hole + 2
    else
      local last = hole_end(line, hole + 2) or fail_at(number, "a hole '${' without its '}'")
      local expression = sub(line, hole + 2, last - 1)
      check_hole(number, expression)
      parts[#parts + 1] = format("%q", literal .. sub(line, at, hole - 1))
      parts[#parts + 1] = "(" .. expression .. ")"
      expressions[#expressions + 1] = expression
      literal, at = "", last + 1
    end
  end
  parts[#parts + 1] = format("%q", literal .. sub(line, at))
  return parts, expressions
end

-- `;do ... end` cannot continue an unfinished statement of the line before, as a bare call could.
local function translate(line, number)
  if sub(line, 1, 1) == "@" then
    check_code(number, line)
    return " " .. sub(line, 2)
  end
  local parts, expressions = split_text(line, number)
  holes[number] = expressions
  return format(";do __emit(%d,%s)end", number, table.concat(parts, ","))
end

local function translate_all()
  local code, number, at = {}, 0, 1
  while at <= #text do
    local stop = find(text, "\n", at, true) or #text + 1
    number = number + 1
    code[number] = translate(sub(text, at, stop - 1), number)
    at = stop + 1
  end
  return table.concat(code, "\n")
end

-- ---- Lua -> text ---------------------------------------------------------------------------------------------

local lines = {}

-- What a hole may hold. Booleans and floats have no one spelling in CUDA, so the template says which it means.
local function hole_text(value, expression)
  if type(value) == "string" then
    if find(value, "\0", 1, true) then fail("${%s} holds a zero byte", expression) end
    return value
  end
  if math.type(value) == "integer" then return format("%d", value) end
  if math.type(value) == "float" then fail("${%s} is the float %s: write float() for a C literal, // for whole division",
                                           expression, format("%.14g", value)) end
  fail("${%s} is %s: a hole takes a string or an integer", expression, value == nil and "nil" or "a " .. type(value))
end

local function emit(number, ...)
  local parts = {...}
  for i = 2, select("#", ...), 2 do parts[i] = hole_text(parts[i], holes[number][i // 2]) end
  local prefix = format("%d:", number)
  local line = table.concat(parts):gsub("\n", "\n" .. prefix)
  lines[#lines + 1] = prefix .. line .. "\n"
end

-- ---- names ---------------------------------------------------------------------------------------------------

-- A read-only view of a table; unknown names are errors.
local function strict(name, members)
  return setmetatable({}, {
    __index = function(_, key)
      local value = members[key]
      if value == nil then fail("unknown name '%s.%s'", name, tostring(key)) end
      return value
    end,
    __newindex = function() fail("'%s' is read-only", name) end,
    __metatable = false,
  })
end

-- Left out of the libraries: what names addresses or the machine, what may differ in the last bit between two C libraries (exp,
-- log, sin ...), what orders by chance (table.sort picks random pivots), and string.dump.
local function keep(library, names)
  local kept = {}
  for name in names:gmatch("%w+") do kept[name] = library[name] end
  for name in next, library do library[name] = kept[name] end
  return library
end

-- Methods such as ("x"):rep(3) reach the library's own table, so that one is cut down, not a copy.
keep(string, "byte char find format gmatch gsub len lower match rep reverse sub upper")
keep(table, "concat insert move pack remove unpack")
keep(math, "abs ceil floor fmod huge max maxinteger min mininteger modf sqrt tointeger type ult")

-- As string.format, but nothing that prints an address.
string.format = function(form, ...)
  if find((form:gsub("%%%%", "")), "%%[^%a]*p") then fail("string.format: %%p is not for templates") end
  for i = 1, select("#", ...) do
    local kind = type((select(i, ...)))
    if kind ~= "string" and kind ~= "number" and kind ~= "boolean" then
      fail("string.format: argument %d is %s", i + 1, kind == "nil" and "nil" or "a " .. kind)
    end
  end
  return format(form, ...)
end

-- What a template sees: these names, the prelude's and the parameters it declared.
local names = {
  ipairs = ipairs, select = select, tonumber = tonumber, type = type,
  string = strict("string", string), table = strict("table", table), math = strict("math", math),
  __emit = emit,
}

for name, value in next, helpers do names[name] = value end

local declared = {}

-- The value of a parameter that the template declares now; from here on it is a name of the template.
local function declare(name)
  if type(name) ~= "string" then fail("param: a name is needed") end
  if declared[name] then fail("parameter '%s' is declared twice", name) end
  if names[name] ~= nil then fail("parameter '%s' has the name of a helper", name) end
  local value = params[name]
  if value == nil then fail("parameter '%s' is declared, but was not handed in", name) end
  declared[name] = true
  return value
end

local param = {}
names.param = strict("param", param)

function param.int(name, least, most)
  local value = declare(name)
  if math.type(value) ~= "integer" then fail("%s: found '%s', allowed an integer", name, value) end
  if (least and value < least) or (most and value > most) then
    local bounds = least and most and format("%d to %d", least, most) or least and format("%d or more", least)
                   or format("at most %d", most)
    fail("%s: found %d, allowed %s", name, value, bounds)
  end
  names[name] = value
  return value
end

-- 0 or 1, read as false or true: in Lua the number 0 counts as true.
function param.flag(name)
  local value = declare(name)
  if value ~= 0 and value ~= 1 then fail("%s: found %s, allowed 0 or 1", name, value) end
  names[name] = value == 1
  return names[name]
end

function param.string(name, allowed)
  local value = declare(name)
  if type(value) ~= "string" then fail("%s: found %d, allowed a string", name, value) end
  local found = not allowed
  for _, choice in ipairs(allowed or {}) do found = found or choice == value end
  if not found then fail("%s: found '%s', allowed %s", name, value, table.concat(allowed, ", ")) end
  names[name] = value
  return value
end

-- The parameters of a template are all that its text depends on, so a key may leave none out and none may be idle.
local function check_params()
  local idle = {}
  for name in next, params do
    if not declared[name] then idle[#idle + 1] = name end
  end
  if #idle > 0 then
    fail_at(1, "parameter '%s' was handed in, but the template does not declare it", helpers.sorted(idle)[1])
  end
end

local environment = setmetatable({}, {
  __index = function(_, name)
    local value = names[name]
    if value ~= nil then return value end
    if params[name] ~= nil then fail("unknown name '%s': a parameter that is handed in, but not declared", name) end
    fail("unknown name '%s'", tostring(name))
  end,
  __newindex = function(_, name) fail("'%s' is not a local: write 'local %s'", tostring(name), tostring(name)) end,
  __metatable = false,
})

local template, message = load(translate_all(), "@" .. file, "t", environment)
if not template then
  -- What Lua did not expect is our own `;do` where a text line meets an unfinished statement.
  local line = tonumber(message:match("^[^:]*:(%d+): "))
  error(message .. (line and holes[line] and " (a text line; is the code line before it complete?)" or ""), 0)
end

return function()
  template()
  check_params()
  return table.concat(lines)
end
