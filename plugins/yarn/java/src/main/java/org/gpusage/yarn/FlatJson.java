// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;

/** Flat JSON objects of texts: the one format of plans, variables and answers; in base64 if bash would read them. */
final class FlatJson {
  static final int LIMIT_BYTES = 64 * 1024;

  private static final JsonFactory JSON = new JsonFactory().enable(JsonParser.Feature.STRICT_DUPLICATE_DETECTION);

  private FlatJson() {}

  /** Return the texts of one JSON object; anything but texts in it, anything after it, or too much of it is refused. */
  static Map<String, String> parse(String json) throws IOException {
    if (json.length() > LIMIT_BYTES) {
      throw new IOException("JSON must have at most " + LIMIT_BYTES + " characters; got " + json.length());
    }
    Map<String, String> texts = new LinkedHashMap<>();
    try (JsonParser parser = JSON.createParser(json)) {
      require(parser.nextToken() == JsonToken.START_OBJECT);
      while (parser.nextToken() != JsonToken.END_OBJECT) {
        require(parser.currentToken() == JsonToken.FIELD_NAME);
        String key = parser.getCurrentName();
        require(parser.nextToken() == JsonToken.VALUE_STRING);
        texts.put(key, parser.getText());
      }
      require(parser.nextToken() == null);
    }
    return texts;
  }

  static String write(Map<String, String> texts) throws IOException {
    StringWriter json = new StringWriter();
    try (JsonGenerator generator = JSON.createGenerator(json)) {
      generator.writeStartObject();
      for (Map.Entry<String, String> text : texts.entrySet()) {
        generator.writeStringField(text.getKey(), text.getValue());
      }
      generator.writeEndObject();
    }
    return json.toString();
  }

  static String fromBase64(String text) throws IOException {
    try {
      return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    } catch (IllegalArgumentException error) {
      throw new IOException("Text must be base64; got something else", error);
    }
  }

  static String toBase64(String text) {
    return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
  }

  private static void require(boolean holds) throws IOException {
    if (!holds) {
      throw new IOException("JSON must be one object whose values are all texts");
    }
  }
}
